"""What the errors of Redis mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ...committers.errors import AccessRefusedError, ConfigurationError, shown
from ..requests.acknowledgements import unreadable
from ..requests.client import classify_error
from ..requests.results import DeadLetter, Failure, Fatal, Retry

_RETRIED = frozenset(
    ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY", "TRYAGAIN")
)
_ACCESS = "Check username and password, and which keys and commands the user may use (ACL GETUSER)."
_NO_CLUSTER = (
    "penstock.redis does not support Redis Cluster: its commands need keys of one slot (hash tags). Use a "
    "server that is no cluster."
)
_FATAL = {
    "NOAUTH": (AccessRefusedError, _ACCESS),
    "NOPERM": (AccessRefusedError, _ACCESS),
    "WRONGPASS": (AccessRefusedError, _ACCESS),
    "ASK": (ConfigurationError, _NO_CLUSTER),
    "CROSSSLOT": (ConfigurationError, _NO_CLUSTER),
    "MOVED": (ConfigurationError, _NO_CLUSTER),
}
_ANOTHER_STRUCTURE = "The key already has another structure. Delete it, or choose another key or structure."
_FULL_STREAM = ("The stream has exhausted", "The ID specified in XADD")
"""Messages about a stream whose last id is the greatest one."""


@dataclass(frozen=True, slots=True)
class OfKey:
    """An error that concerns the key of the row: other keys may accept their rows."""

    code: str
    message: str

    def result(self, key: Sequence[str | None], *, has_columns: bool) -> DeadLetter | Fatal:
        """Return the result of a row.

        Args:
            key: of the row, and its field in a hash
            has_columns: False: all rows have this key, so no row can be delivered
        """
        named = ", field ".join(shown(part) for part in key if part is not None)
        message = f"Key {named}: {self.message}"
        return (
            DeadLetter(self.code, message) if has_columns else Fatal(self.code, message, ConfigurationError)
        )


@cache
def _codes() -> tuple[tuple[type[Exception], str], ...]:
    """Errors from whose message the library removes the code."""
    from redis import exceptions

    return (
        (exceptions.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
        (exceptions.AuthenticationError, "NOAUTH"),
        (exceptions.NoPermissionError, "NOPERM"),
        (exceptions.BusyLoadingError, "LOADING"),
        (exceptions.ReadOnlyError, "READONLY"),
        (exceptions.OutOfMemoryError, "OOM"),
        (exceptions.MovedError, "MOVED"),
        (exceptions.AskError, "ASK"),
        (exceptions.TryAgainError, "TRYAGAIN"),
        (exceptions.ClusterDownError, "CLUSTERDOWN"),
        (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
        (exceptions.MasterDownError, "MASTERDOWN"),
    )


def of_key(error: str) -> OfKey | None:
    """Return an error of a command that concerns its key; None if it is another one."""
    code, _, message = error.partition(" ")
    if code == "WRONGTYPE":
        return OfKey(code, f"{message}. {_ANOTHER_STRUCTURE}")
    plain = error.removeprefix("ERR ")  # the library has removed it, a script has not
    return OfKey("ERR", plain) if plain.startswith(_FULL_STREAM) else None


def classify(error: Exception) -> Failure:
    """See `ErrorClassifier`."""
    from redis import exceptions

    for kind, code in _codes():
        if isinstance(error, kind):
            return result_of(code, str(error))
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, asyncio.TimeoutError)):
        return Retry(type(error).__name__, str(error))
    if isinstance(error, exceptions.ResponseError):
        code, _, message = str(error).partition(" ")
        return result_of(code, message)
    if isinstance(error, (exceptions.InvalidResponse, ValueError)):  # something else than Redis replies
        return unreadable(str(error))
    return classify_error(error)


def result_of(code: str, message: str) -> Failure:
    """Return the result of a response with an error."""
    if code == "OOM":
        return Retry(code, message, is_throttled=True)
    if code in _RETRIED:
        return Retry(code, message)
    if code in _FATAL:
        kind, remedy = _FATAL[code]
        return Fatal(code, f"{message.rstrip('.')}. {remedy}", kind)
    return Fatal(code, message, ConfigurationError)
