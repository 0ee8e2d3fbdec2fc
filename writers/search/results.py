"""What the errors of OpenSearch and Elasticsearch mean.

Sources: "Bulk API" in their documentation, and the status of each exception of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...committers.errors import AccessRefusedError, ConfigurationError
from ...committers.redirects import is_redirect
from ..requests.acknowledgements import UNACKNOWLEDGED, object_of
from ..requests.redirects import redirected
from ..requests.results import DELIVERED, DeadLetter, Dropped, Failure, Fatal, Result, Retry, Split
from ..requests.retry_after import retry_after_of

Operation = Literal["index", "create"]

_INDEX = "Check the option index, or create the index."
_RETRIED = frozenset((408, 425, 429))
_THROTTLED = frozenset((429, 503))
_REFUSED = {
    401: "Check the credentials.",
    403: "Check the permissions of these credentials, and the blocks of the index.",
    404: _INDEX,
    405: "Check the url.",
    407: "Check the credentials for the proxy.",
}
"""What no other row would change, and the next step. Deliveries continue once it is corrected."""
_OF_THE_INDEX = {
    "index_closed_exception": "Open the index.",
    "invalid_index_name_exception": _INDEX,
    "routing_missing_exception": "The index requires a routing: set the option routing.",
}
"""Errors with status 400 that all rows get, by their type."""
_OF_ALL_ROWS = {
    "pipeline with id [": "Check the option pipeline, or create the pipeline.",
    "no write index is defined for alias": "Set is_write_index for one index of the alias.",
    "only write ops with an op_type of create": 'Set .option("operation", "create") for data streams.',
}
"""The same, by their message. Their type is that of bad rows."""


def result_of_request(status: int, body: object, headers: Mapping[str, str]) -> Failure:
    """Return the result of a request that failed with this response."""
    if is_redirect(status):
        return redirected(status, headers)
    code, reason = described(status, body)
    if status in _RETRIED or status >= 500:
        return Retry(code, reason, retry_after_of(headers), is_throttled=status in _THROTTLED)
    if status in _REFUSED:
        return Fatal(code, f"{reason} {_REFUSED[status]}", AccessRefusedError)
    if status == 413 or code == "action_request_validation_exception":
        return Split(code, reason)
    return Fatal(code, f"{reason} Check the url.", ConfigurationError)


def result_of_item(item: Mapping[str, Any], operation: str, *, is_versioned: bool = False) -> Result:
    """Return the result of one entry.

    Args:
        item: of the response, such as `{"index": {"status": 201}}`
        operation: of the entry
        is_versioned: the rows have versions, and the service refuses older ones
    """
    outcome = object_of(item.get(operation))
    status = outcome.get("status")
    if not isinstance(status, int) or not (200 <= status < 300 or 400 <= status < 600):
        return UNACKNOWLEDGED
    if status < 300:
        return DELIVERED
    if operation == "delete" and outcome.get("result") == "not_found":
        return DELIVERED
    code, reason = described(status, outcome)
    if status == 409 and is_versioned:
        return Dropped("The document has a newer version.")
    if status == 409:  # the document is there; without `create`, another client is writing it
        return DELIVERED if operation == "create" else Retry(code, reason)
    if status in _RETRIED or status >= 500:
        return Retry(code, reason, is_throttled=status in _THROTTLED)
    remedy = _REFUSED.get(status) or (_remedy(code, reason) if status == 400 else None)
    if remedy:
        return Fatal(code, f"{reason} {remedy}", AccessRefusedError)
    return DeadLetter(code, reason)


def described(status: int, body: object) -> tuple[str, str]:
    """Return type and reason of the error in a response, or its status and what there is."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return str(status), str(error or body or "")
    reason, cause = str(error.get("reason", "")), error.get("caused_by")
    if isinstance(cause, Mapping) and cause.get("reason"):
        reason = f"{reason}: {cause['reason']}"
    return str(error.get("type", status)), f"{reason}."


def _remedy(code: str, reason: str) -> str | None:
    if code in _OF_THE_INDEX:
        return _OF_THE_INDEX[code]
    return next((remedy for start, remedy in _OF_ALL_ROWS.items() if start in reason), None)
