"""What the errors of Redis mean."""

from __future__ import annotations

import asyncio
from functools import cache

from ...committers.errors import AccessRefusedError, ConfigurationError
from ..requests.acknowledgements import unreadable
from ..requests.client import classify_error
from ..requests.results import Failure, Fatal, Retry

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
    "WRONGTYPE": (
        ConfigurationError,
        "The key already has another structure. Delete it, or choose another key or structure.",
    ),
}


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
        return Fatal(code, f"{message}. {remedy}", kind)
    return Fatal(code, message, ConfigurationError)
