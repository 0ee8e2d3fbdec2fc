"""The rule of all request-based destinations: an entry is delivered by an acknowledgement of its own.

A proxy, a log-in page or another service at the address can answer anything, also with success. So an answer
is read as the data of a stranger, and what does not acknowledge an entry is a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from .results import DELIVERED, Failure, Result, Retry

CODE = "UNACKNOWLEDGED"
_REMEDY = "If this lasts, check the address: a proxy, a log-in page or another service may answer there."
UNACKNOWLEDGED = Retry(CODE, f"The answer does not acknowledge the row. {_REMEDY}")
"""The result of an entry about which the answer says nothing."""

_RESULTS = get_args(Result)
_FAILURES = get_args(Failure)


def unreadable(message: str) -> Retry:
    """Return the result of all entries if their answer cannot be read."""
    return Retry(CODE, f"The answer cannot be read: {message}. {_REMEDY}")


def result_of_each(results: object, entries: int) -> Sequence[Result]:
    """Return one result for each entry of a request.

    Only a failure can be the result of all of them. Success needs a result for each entry, and as many as
    were sent: of others nobody knows which entries they are of.

    Args:
        results: of the client
    """
    if isinstance(results, _FAILURES):
        return [results] * entries
    if not isinstance(results, Sequence):
        return [UNACKNOWLEDGED] * entries
    if len(results) != entries:
        message = f"The answer has {len(results)} results for {entries} rows. {_REMEDY}"
        return [Retry(CODE, message)] * entries
    return [one if isinstance(one, _RESULTS) else UNACKNOWLEDGED for one in results]


def results_of_items(
    answer: object, name: str, result_of: Callable[[Mapping[str, Any]], Result]
) -> list[Result]:
    """Return the result of each item of the list `name` in the answer; none if there is no such list."""
    return [result_of(item) for item in objects_in(answer, name)]


def objects_in(answer: object, name: str) -> list[Mapping[str, Any]]:
    """Return the list `name` of objects in an answer. What is no object is an empty one."""
    found = answer.get(name) if isinstance(answer, Mapping) else None
    return [object_of(one) for one in found] if isinstance(found, list) else []


def object_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def text_of(item: Mapping[str, Any], name: str) -> str:
    """Return a text of an item; empty if there is none."""
    value = item.get(name)
    return value if isinstance(value, str) else ""


def acknowledged_by(item: Mapping[str, Any], name: str) -> Result:
    """Return the result of an item that acknowledges its entry with the text `name`."""
    return DELIVERED if text_of(item, name) else UNACKNOWLEDGED
