"""What the errors of NATS and JetStream mean."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...committers.errors import AccessRefusedError, ConfigurationError, PenstockError
from ..requests.acknowledgements import object_of
from ..requests.client import classify_error
from ..requests.results import DELIVERED, DeadLetter, Failure, Fatal, Result, Retry

if TYPE_CHECKING:
    from nats.aio.msg import Msg

NO_RESPONDERS = "NO_RESPONDERS"

_OVERLOADED = frozenset((10002, 10023, 10028, 10047, 10077, 10167))
"""Limits of account and server, a stream that is full (10077, with `discard=new`), too many requests."""
_RETRIED = frozenset((10158,))
"""The message is being stored: its response was lost."""
_REFUSED = frozenset((10054, 10097))
"""Larger than the stream's max_msg_size, or the headers are larger than 64 KiB."""
_FATAL = {
    10039: "JetStream is not enabled for the account. Use another account.",
    10060: "The stream that takes the subject is another one. Correct expectedStream or subject.",
    10076: "JetStream is not enabled on the server. Start it with -js.",
    10109: "The stream is sealed. Choose another one.",
}
_ACCESS_WORDS = ("authorization", "authentication", "permissions violation")
ACCESS = (
    "Check the credentials, and that the user may publish to the subject and to $JS.API.STREAM.NAMES and "
    "$JS.API.STREAM.INFO.*, and subscribe to _INBOX.>."
)


def result_of(ack: Msg, subject: str) -> Result:
    """Return what the response to a message means."""
    if not ack.data and (ack.headers or {}).get("Status") == "503":
        return Retry(
            NO_RESPONDERS,
            f"no stream takes the subject {subject}, or JetStream is not available. Check the subjects of "
            "the stream.",
        )
    response: object = None
    with suppress(ValueError, RecursionError):
        response = json.loads(ack.data)
    error = object_of(object_of(response).get("error"))
    if _number(error, "code"):
        return result_of_error(error)
    if not error and _is_puback(object_of(response)):
        return DELIVERED  # also if it is a duplicate: the stream has the message
    return Retry(
        "NO_PUBACK",
        f"A service other than JetStream responds to the subject {subject}. If this lasts, remove it, or "
        "choose another subject.",
    )


def _is_puback(response: Mapping[str, Any]) -> bool:
    """The name of the stream, and the place of the message in it."""
    number, stream = response.get("seq"), response.get("stream")
    return isinstance(number, int) and number > 0 and isinstance(stream, str) and bool(stream)


def result_of_error(error: Mapping[str, Any]) -> Result:
    """Return what an error of JetStream means, by the number in its list of errors."""
    number, status = (_number(error, name) for name in ("err_code", "code"))
    code, message = str(number or status), str(error.get("description", ""))
    if number in _FATAL:
        return Fatal(code, f"{message}. {_FATAL[number]}", ConfigurationError)
    if number in _REFUSED:
        return DeadLetter(code, message)
    if number in _OVERLOADED or status == 429:
        return Retry(code, message, is_throttled=True)
    if number in _RETRIED or status >= 500:
        return Retry(code, message)
    return Fatal(code, message, ConfigurationError)


def _number(error: Mapping[str, Any], name: str) -> int:
    value = error.get(name)
    return value if isinstance(value, int) else 0


def classify(error: Exception) -> Failure:
    """See `ErrorClassifier`."""
    from nats import errors
    from nats.js.errors import APIError

    code, message = type(error).__name__, str(error)
    if isinstance(error, PenstockError):
        return classify_error(error)
    if isinstance(error, ssl.SSLError):
        return Fatal(code, f"{message}. Check url and caFile.", ConfigurationError)
    if isinstance(error, APIError):
        result = result_of_error(
            {"code": error.code, "err_code": error.err_code, "description": error.description}
        )
        return result if isinstance(result, (Retry, Fatal)) else Fatal(code, message, ConfigurationError)
    if isinstance(error, errors.AuthorizationError) or (
        isinstance(error, errors.Error) and any(word in message.lower() for word in _ACCESS_WORDS)
    ):
        return Fatal(code, f"{message}. {ACCESS}", AccessRefusedError)
    if isinstance(error, (errors.BadSubjectError, errors.BadHeaderError)):
        return Fatal(code, message, ConfigurationError)
    if isinstance(error, errors.Error):
        return Retry(code, message)
    return classify_error(error)
