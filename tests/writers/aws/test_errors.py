"""What the errors of AWS services and of their library mean."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from botocore import exceptions as aws

from penstock.committers.errors import AccessRefusedError, ConfigurationError, PenstockError, RetryableError
from penstock.writers.aws.errors import classify, result_of, result_of_entry
from penstock.writers.requests.results import DeadLetter, Fatal, Retry, Split


def error_of(code: str, status: int = 400) -> aws.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "why"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return aws.ClientError(response, "PutRecords")


@pytest.mark.parametrize(
    ("code", "status", "is_throttled"),
    [
        *[(code, 400, True) for code in ("ProvisionedThroughputExceededException", "RequestLimitExceeded")],
        *[(code, 400, True) for code in ("Throttling", "ThrottlingException", "KMSThrottlingException")],
        *[("KmsThrottled", 400, True), ("RequestThrottled", 403, True), ("OverLimit", 403, True)],
        ("ServiceUnavailableException", 503, True),
        ("whatever", 503, True),
        ("InternalFailure", 500, False),
        ("InternalServerError", 500, False),
        ("ReplicatedWriteConflictException", 400, False),
        ("whatever", 502, False),
        ("", 504, False),
    ],
)
def test_what_passes_is_retried(code: str, status: int, is_throttled: bool) -> None:
    result = classify(error_of(code, status))
    assert isinstance(result, Retry)
    assert result.is_throttled == is_throttled


NOT_FOUND = ("ResourceNotFoundException", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")


@pytest.mark.parametrize(
    ("code", "status", "kind", "said"),
    [
        ("AccessDeniedException", 400, AccessRefusedError, "policy"),
        ("UnrecognizedClientException", 400, AccessRefusedError, "Check the credentials"),
        ("InvalidClientTokenId", 403, AccessRefusedError, "Check the credentials"),
        ("ExpiredTokenException", 400, AccessRefusedError, "a sessionToken is not renewed"),
        ("ExpiredToken", 403, AccessRefusedError, "a sessionToken is not renewed"),
        ("InvalidSignatureException", 400, AccessRefusedError, "clock"),
        *[(code, 400, AccessRefusedError, "Check its name") for code in NOT_FOUND],
        ("KMSDisabledException", 400, AccessRefusedError, "KMS key"),
        ("com.amazonaws#AccessDeniedException", 400, AccessRefusedError, "policy"),
        ("InvalidSourceException", 400, ConfigurationError, "why"),
        ("UnsupportedOperation", 400, ConfigurationError, "why"),
        ("SomethingNew", 403, AccessRefusedError, "policy"),
        ("SomethingNew", 400, RetryableError, "why"),
    ],
)
def test_what_no_other_row_would_change_stops_the_writer(
    code: str, status: int, kind: type[PenstockError], said: str
) -> None:
    result = classify(error_of(code, status))
    assert isinstance(result, Fatal)
    assert result.error is kind
    assert said in result.message


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *[(f"{what}Exception", 400) for what in ("Validation", "InvalidArgument")],
        ("ItemCollectionSizeLimitExceededException", 400),
        *[(code, 400) for code in ("AWS.SimpleQueueService.BatchRequestTooLong", "InvalidMessageContents")],
        ("whatever", 413),
    ],
)
def test_what_some_row_causes_splits_the_request(code: str, status: int) -> None:
    assert isinstance(classify(error_of(code, status)), Split)


def test_an_entry_that_is_refused_for_good_is_a_dead_letter() -> None:
    assert isinstance(result_of_entry("InvalidMessageContents", "why"), DeadLetter)
    assert isinstance(result_of_entry("InternalFailure", "why"), Retry)
    assert isinstance(result_of_entry("SomethingNew", "why"), Fatal)


@pytest.mark.parametrize(
    "error",
    [
        aws.EndpointConnectionError(endpoint_url="u"),
        aws.ConnectTimeoutError(endpoint_url="u"),
        aws.ReadTimeoutError(endpoint_url="u"),
        aws.ConnectionClosedError(endpoint_url="u"),
        aws.HTTPClientError(error="e"),
        aws.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        aws.ResponseStreamingError(error="e"),
        aiohttp.ClientPayloadError(),
        asyncio.TimeoutError(),
        ConnectionResetError(),
    ],
)
def test_a_connection_that_breaks_is_retried(error: Exception) -> None:
    assert isinstance(classify(error), Retry)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aws.NoCredentialsError(), AccessRefusedError),
        (aws.PartialCredentialsError(provider="p", cred_var="v"), AccessRefusedError),
        (aws.CredentialRetrievalError(provider="p", error_msg="e"), AccessRefusedError),
        (aws.SSLError(endpoint_url="u", error="e"), ConfigurationError),
        (aws.UnknownServiceError(service_name="s", known_service_names="k"), ConfigurationError),
    ],
)
def test_errors_of_the_configuration_stop_the_writer(error: Exception, kind: type[PenstockError]) -> None:
    result = classify(error)
    assert isinstance(result, Fatal)
    assert result.error is kind


def test_a_code_is_shown_without_its_namespace() -> None:
    assert result_of("com.amazonaws.kinesis#ThrottlingException", "").code == "ThrottlingException"
