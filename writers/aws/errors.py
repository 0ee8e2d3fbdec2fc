"""What the errors of AWS services mean, from their documentation.

Sources: "Common Errors" in the API references, and the errors of PutRecords, PutRecordBatch, BatchWriteItem
and SendMessageBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...committers.errors import AccessRefusedError, ConfigurationError
from ...committers.redirects import is_redirect
from ..requests.acknowledgements import acknowledged_by, text_of, unreadable
from ..requests.client import classify_error
from ..requests.redirects import redirected
from ..requests.results import DeadLetter, Failure, Fatal, Result, Retry, Split
from ..requests.retry_after import retry_after_of

_THROTTLED = frozenset(
    (
        "KMSThrottlingException",
        "KmsThrottled",
        "LimitExceededException",
        "OverLimit",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    )
)
_RETRIED = frozenset(
    (
        "InternalError",
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "ReplicatedWriteConflictException",
        "RequestTimeout",
        "RequestTimeoutException",
    )
)
_CREDENTIALS = "Check the credentials of the driver, the executors and the delivery process."
_EXPIRED = (
    "Give new credentials: a sessionToken is not renewed. Credentials of the default chain from a role or "
    "profile are."
)
_CLOCK = "Check the credentials, and the clock of this machine: signatures are valid for some minutes."
_PERMISSION = "Allow it in the policy of the user or role."
_KEY = "Check the state of the KMS key, and its policy."
_NAME = "Check its name, region and account, or create it."
_REFUSED = {
    "AccessDenied": _PERMISSION,
    "AccessDeniedException": _PERMISSION,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "IncompleteSignature": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidKMSResourceException": _KEY,
    "InvalidSecurity": _CREDENTIALS,
    "InvalidSignatureException": _CLOCK,
    "KMSAccessDeniedException": _KEY,
    "KMSDisabledException": _KEY,
    "KMSInvalidStateException": _KEY,
    "KMSNotFoundException": _KEY,
    "KMSOptInRequired": _KEY,
    "KmsAccessDenied": _KEY,
    "KmsDisabled": _KEY,
    "KmsInvalidKeyUsage": _KEY,
    "KmsInvalidState": _KEY,
    "KmsNotFound": _KEY,
    "KmsOptInRequired": _KEY,
    "MissingAuthenticationToken": _CREDENTIALS,
    "MissingAuthenticationTokenException": _CREDENTIALS,
    "NotAuthorized": _PERMISSION,
    "OptInRequired": "Activate the service or the region for the account.",
    "QueueDoesNotExist": _NAME,
    "RequestExpired": _CLOCK,
    "ResourceNotFoundException": _NAME,
    "SignatureDoesNotMatch": _CLOCK,
    "UnrecognizedClientException": _CREDENTIALS,
}
"""What no other row would change, and the next step. Deliveries continue once it is corrected."""
MISSING = frozenset(("QueueDoesNotExist", "ResourceNotFoundException"))
_OF_ROWS = frozenset(
    (
        "BatchRequestTooLong",
        "InvalidArgumentException",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "ItemCollectionSizeLimitExceededException",
        "RequestEntityTooLarge",
        "SerializationException",
        "ValidationError",
        "ValidationException",
    )
)
"""Errors of some row of the request."""
_MISCONFIGURED = frozenset(
    ("InvalidAddress", "InvalidSourceException", "UnsupportedOperation", "UnknownOperationException")
)


class AnswerError(Exception):
    """An answer that is not one of the service: the library assumes its form."""


@contextmanager
def reading_an_answer() -> Iterator[None]:
    """Raise `AnswerError` for what botocore, or its caller, raises while it reads another answer."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise AnswerError(f"{type(error).__name__}: {error}") from error


def result_of(code: str, message: str, status: int = 400, retry_after_s: float | None = None) -> Failure:
    """Return the result of a request that failed with this error."""
    code = code.rpartition("#")[2].rpartition(".")[2]  # AWS.SimpleQueueService.NonExistentQueue
    if code == "NonExistentQueue":
        code = "QueueDoesNotExist"
    if code in _THROTTLED or status in (429, 503):
        return Retry(code, message, retry_after_s, is_throttled=True)
    if code in _RETRIED or status >= 500:
        return Retry(code, message, retry_after_s)
    if code in _REFUSED:
        return Fatal(code, f"{message} {_REFUSED[code]}", AccessRefusedError)
    if code in _OF_ROWS or status == 413:
        return Split(code, message)
    if code in _MISCONFIGURED:
        return Fatal(code, message, ConfigurationError)
    if status in (401, 403):
        return Fatal(code, f"{message} {_PERMISSION}", AccessRefusedError)
    return Fatal(code, message)


def result_of_entry(code: str, message: str) -> Result:
    """Return the result of one entry that failed, while others did not."""
    result = result_of(code, message)
    return DeadLetter(result.code, result.message) if isinstance(result, Split) else result


def result_of_record(record: Mapping[str, Any], acknowledgement: str) -> Result:
    """Return the result of one record of Kinesis or Firehose.

    Args:
        acknowledgement: the field that only a record has which was taken
    """
    if code := text_of(record, "ErrorCode"):
        return result_of_entry(code, text_of(record, "ErrorMessage"))
    return acknowledged_by(record, acknowledgement)


def classify(error: Exception) -> Failure:
    """Return the result of a request that raised this error. A response that was cut off is retried."""
    import aiohttp
    from botocore import exceptions as aws

    code, message = type(error).__name__, str(error)
    if isinstance(error, AnswerError):
        return unreadable(message)
    if isinstance(error, aws.ClientError):
        described, metadata = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        headers = metadata.get("HTTPHeaders", {})
        if is_redirect(metadata.get("HTTPStatusCode", 400)):
            return redirected(metadata["HTTPStatusCode"], headers)
        return result_of(
            str(described.get("Code", "")),
            str(described.get("Message") or message),
            metadata.get("HTTPStatusCode", 400),
            retry_after_of(headers),
        )
    if isinstance(
        error,
        (
            aws.CredentialRetrievalError,
            aws.NoAuthTokenError,
            aws.NoCredentialsError,
            aws.PartialCredentialsError,
            aws.ProfileNotFound,
            aws.TokenRetrievalError,
            aws.UnauthorizedSSOTokenError,
        ),
    ):
        return Fatal(code, f"{message} {_CREDENTIALS}", AccessRefusedError)
    if isinstance(error, aws.SSLError):
        return Fatal(code, message, ConfigurationError)
    if isinstance(
        error,
        (
            aws.ConnectionError,
            aws.HTTPClientError,
            aws.IncompleteReadError,
            aws.ResponseStreamingError,
            aiohttp.ClientError,
        ),
    ) or code in ("ResponseParserError", "EndpointProviderError"):
        return Retry(code, message)
    if isinstance(error, aws.BotoCoreError):
        return Fatal(code, message, ConfigurationError)
    return classify_error(error)
