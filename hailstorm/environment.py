"""Secrets from the environment: `${env:NAME}` in the options of a log or a sink.

The value that a user writes holds the name only, so a topology can be pickled, described, fingerprinted and shown.
The secret itself is put in where a connection is opened, and taken out again of what that connection complains about.
Logs and sinks call this; it keeps nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from hailstorm.errors import UsageError

_REFERENCE = re.compile(r"\$\{env:([^}]*)\}")
_SECRET = re.compile(r"password|passwd|secret|token|credential|private|jaas|\.pem$|api.?key|access.?key", re.I)
_IN_ADDRESS = re.compile(r"(?<=://)([^/@\s]*):([^/@\s]*)@")
HIDDEN = "***"


def revealed(text: str) -> str:
    """The text with every `${env:NAME}` replaced by that variable. Raises UsageError when it is not set."""
    return _REFERENCE.sub(lambda match: _variable(match[1]), text)


def revealed_all(options: Mapping[str, object]) -> dict[str, object]:
    """The options with `revealed` texts: what a client library is given. Other values stay as they are."""
    return {name: revealed(value) if isinstance(value, str) else value for name, value in options.items()}


def secrets_in(*texts: str) -> frozenset[str]:
    """The values of all variables that the texts name: what no message may show."""
    return frozenset(_variable(name) for text in texts for name in _REFERENCE.findall(text))


def written_secrets(options: Mapping[str, object]) -> frozenset[str]:
    """The secrets that were written down in options although they should not be: no message shows them, either."""
    return frozenset(str(options[name]) for name, value in public_options(options).items() if value == HIDDEN)


def concealed(message: str, secrets: Iterable[str] = ()) -> str:
    """A message that may be shown: without the secrets, and without the password in an address."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            message = message.replace(secret, HIDDEN)
    return _IN_ADDRESS.sub(lambda match: f"{match[1]}:{HIDDEN}@", message)


def public_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options as `describe` may give them: what is secret by its name is hidden unless it is a reference."""
    return {name: _public(name, value) for name, value in options.items()}


def _public(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if _SECRET.search(name) and not _REFERENCE.fullmatch(value):
        return HIDDEN
    return concealed(value)


def _variable(name: str) -> str:
    if name not in os.environ:
        raise UsageError(
            40,
            f"the environment has no variable '{name}', which an option names as ${{env:{name}}}",
            hint=f"Set it where the topology runs: export {name}=…",
        )
    return os.environ[name]
