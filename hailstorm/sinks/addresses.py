"""Addresses of servers: what may be shown of one, and what is wrong with it before anybody connects.

For the sinks that are given a URL (Postgres, Redis, Webhook). Secrets stand in it as `${env:NAME}`, or the whole
address does; and people write passwords and tokens into it all the same, so nothing but scheme, user, host, port and
path is ever shown, and of a webhook not even user and path.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from hailstorm.environment import HIDDEN, revealed
from hailstorm.errors import Location, SinkError

_WHOLE = "${env:"
_GUESSABLE = 8  # letters; shorter parts of a path are words, and would be taken out of sentences


def check_address(url: str, *schemes: str) -> None:
    """Refuse what is no URL of these schemes. Never repeats the URL: it may hold a password."""
    if url.startswith(_WHOLE):
        return  # known only where it is opened
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in schemes:
        raise SinkError(
            12,
            f"the address of the sink is not one of {', '.join(f'{scheme}://' for scheme in schemes)}",
            at=Location.of_caller(),
            hint=f"Write it as {schemes[0]}://user:${{env:PASSWORD}}@host:port/name",
        )


def public_address(url: str) -> str:
    """The address without password, query and fragment: for `describe`, errors and progress lines."""
    if url.startswith(_WHOLE):
        return url
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"


def public_host(url: str) -> str:
    """The address without its path, too: a webhook's path is as good as a password."""
    if url.startswith(_WHOLE):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{'/' + HIDDEN if parts.path.strip('/') else ''}"


def secrets_of_path(url: str) -> frozenset[str]:
    """What no message may show of the path of an address: the whole, and every part that nobody would guess."""
    path = urlsplit(url).path
    parts = {part for part in path.split("/") if len(part) >= _GUESSABLE}
    return frozenset({path} | parts) if path.strip("/") else frozenset()


def whole_address(url: str, *schemes: str) -> str:
    """The address itself when it stands in the environment as a whole; parts of it stay for `revealed`."""
    if not url.startswith(_WHOLE):
        return url
    url = revealed(url)
    check_address(url, *schemes)
    return url
