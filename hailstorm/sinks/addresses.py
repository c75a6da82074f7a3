"""Addresses of servers: what may be shown of one, and what is wrong with it before anybody connects.

For the sinks that are given a URL (Postgres, Redis, Webhook). Secrets stand in it as `${env:NAME}`, and people write
passwords and tokens into it all the same, so nothing but scheme, user, host, port and path is ever shown.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from hailstorm.errors import Location, SinkError


def check_address(url: str, *schemes: str) -> None:
    """Refuse what is no URL of these schemes. Never repeats the URL: it may hold a password."""
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
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"
