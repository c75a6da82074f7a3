"""Addresses of servers: what may be shown of one, and what is wrong with it before anybody connects.

For the sinks that are given a URL (Postgres, Redis, Webhook). Secrets stand in it as `${env:NAME}`, or the whole
address does; and people write passwords and tokens into it all the same, so nothing but scheme, user, host, port and
path is ever shown.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from hailstorm.environment import revealed
from hailstorm.errors import Location, SinkError

_WHOLE = "${env:"


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


def whole_address(url: str, *schemes: str) -> str:
    """The address itself when it stands in the environment as a whole; parts of it stay for `revealed`."""
    if not url.startswith(_WHOLE):
        return url
    url = revealed(url)
    check_address(url, *schemes)
    return url
