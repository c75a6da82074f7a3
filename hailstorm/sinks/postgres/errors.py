"""What PostgreSQL says, as errors with a code: wait, stop, or a single row that it does not take.

The server's five-letter codes decide, because its messages are in its own language. Only while connecting there is no
code, and there the message must do.
"""

from __future__ import annotations

from hailstorm.environment import concealed
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.files import full_disk

# Connection lost, too many connections, deadlock, lock timeout, shutdown, timeouts, a standby during a failover.
_TRANSIENT = ("08", "53", "40", "55", "57", "25")
# A value out of range, a constraint, a limit (an index entry too long), a view's check, a trigger that raises.
_OF_A_ROW = ("22", "23", "54", "44", "P0")
_NO_RIGHT = ("28", "3D", "42501")
_NO_LOGIN = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "not permitted to log in",
)


class UnknownTable(Exception):
    """A row names a table that the sink does not have."""


def row_reason(error: Exception) -> str | None:
    """Why some row cannot be written, or None when the error is about something else."""
    if isinstance(error, UnknownTable):
        return str(error)
    if (getattr(error, "sqlstate", None) or "").startswith(_OF_A_ROW):
        return _message(error)
    return None


def sink_error(error: Exception, place: str, secrets: frozenset[str]) -> SinkError:
    code, text = getattr(error, "sqlstate", None) or "", concealed(_message(error), secrets)
    if code.startswith(_NO_RIGHT) or (not code and any(words in text for words in _NO_LOGIN)):
        return SinkError(
            20,
            f"may not write to {place}: {text}",
            hint="Check user, password and database in the address. The user needs the rights to use the schema, to\n"
            "SELECT, INSERT, UPDATE and DELETE in the table and in hailstorm_cursors, and, where they are missing, to\n"
            "create them.",
        )
    if code == "53100":
        return full_disk(place, text)
    if not code or code.startswith(_TRANSIENT):
        return TransientSinkError(6, f"cannot write to {place} now: {text}", hint="It is tried again.")
    return SinkError(11, f"{place} does not take the rows: {text}")


def _message(error: Exception) -> str:
    about = getattr(error, "diag", None)
    parts = [part for part in (about.message_primary, about.message_detail) if part] if about else []
    return ". ".join(parts) if parts else " ".join(str(error).split())
