"""What went wrong, for people: the useful lines of an exception of Spark, without Java's stack."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from .error_of import error_of

_JAVA = re.compile(
    r"^(\tat |Driver stacktrace:|JVM stacktrace:|Caused by: |=== Streaming Query ===| ?SQLSTATE: )",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What is wrong, where, and what to do. A notebook shows it as text."""

    kind: str
    """The class of the error."""
    message: str
    restart_helps: bool | None
    """Is a restart without any change perhaps enough? None: not known, as the error is not from Penstock."""

    def __str__(self) -> str:
        first = f"{self.kind}: {self.message}"
        return f"{first}\n\n{self._advice}" if self._advice else first

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        advice = f"<p>{html.escape(self._advice)}</p>" if self._advice else ""
        text = html.escape(self.message)
        return f'<p><b>{html.escape(self.kind)}</b></p><p style="white-space: pre-wrap">{text}</p>{advice}'

    @property
    def _advice(self) -> str:
        if self.restart_helps is None:
            return ""
        if self.restart_helps:
            return "A restart of the query may be enough."
        return "A restart alone does not help: correct the cause first."


def explain(failure: Any) -> Explanation | None:
    """Return why a query has ended, in the words of the error itself.

    Args:
        failure: as for `error_of`: an exception of Spark or of Penstock, or a query

    Returns:
        None if the query still runs, or has ended without an exception
    """
    error = error_of(failure)
    if error is not None:
        return Explanation(type(error).__name__, str(error), error.restart_helps)
    if not isinstance(failure, BaseException):
        failure = failure.exception()
    return None if failure is None else Explanation(type(failure).__name__, _without_java(failure), None)


def _without_java(failure: BaseException) -> str:
    """The message up to the first line of Java."""
    text = str(failure)
    found = _JAVA.search(text)
    return (text[: found.start()] if found else text).strip()
