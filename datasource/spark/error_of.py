"""The Penstock error that ended a query, from the exception that Spark raises for it.

Spark runs sinks in processes of their own. What it raises in the program that started the query is an
exception of Spark, whose text has the name and the message of the error. Runs in that program, with classic
Spark and with Spark Connect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...committers import errors
from ...committers.errors import PenstockError

_RAISED = re.compile(
    re.escape(errors.__name__) + r"\.(?P<name>\w+): (?P<message>.*?)\s*"
    r"(?:^ ?SQLSTATE: |^\tat |^Driver stacktrace:|^JVM stacktrace:|^Caused by: |^=== Streaming Query ===|\Z)",
    re.DOTALL | re.MULTILINE,
)


def error_of(failure: Any) -> PenstockError | None:
    """Return the Penstock error behind an exception of Spark, or behind the end of a query.

    Its class says what can be done, its message says what is wrong, where, and what the next step is, and
    `restart_helps` says if a restart without any change may be enough.

    Args:
        failure: an exception that `awaitTermination`, `processAllAvailable` or `df.write` has raised; or a
            `StreamingQuery`

    Returns:
        None if the query still runs, has ended without an exception, or with one that is not from Penstock
    """
    if not isinstance(failure, BaseException):
        failure = failure.exception()
    for error in _chain(failure):
        if isinstance(error, PenstockError):
            return error
        found = _RAISED.search(str(error))
        kind = getattr(errors, found["name"], None) if found else None
        if found and isinstance(kind, type) and issubclass(kind, PenstockError):
            return kind(found["message"])
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
