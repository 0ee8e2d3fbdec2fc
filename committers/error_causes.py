"""Classifies errors of storages, catalogs and databases as outages or refusals.

An outage is temporary: the same configuration may work later. A refusal lasts until the options or
permissions are corrected. Neither tells whether a request was executed; the caller has to find out. Types are
compared by name, so that this module loads no library. Runs anywhere.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from enum import Enum

from .errors import AccessRefusedError, RetryableError


class ErrorCause(Enum):
    """Why an operation has failed."""

    OUTAGE = "outage"
    REFUSED = "refused"
    """The credentials do not grant access, or the configured target does not exist."""
    UNKNOWN = "unknown"


_OUTAGE_TYPES = frozenset(
    {
        "azure.core.exceptions.ServiceRequestError",
        "azure.core.exceptions.ServiceResponseError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "builtins.ConnectionError",
        "builtins.TimeoutError",
        "psycopg.InterfaceError",
        "psycopg.OperationalError",
        "pyiceberg.exceptions.ServerError",
        "pyiceberg.exceptions.ServiceUnavailableError",
        "pyiceberg.exceptions.TooManyRequestsError",
        "requests.exceptions.RequestException",
        "sqlalchemy.exc.InterfaceError",
        "sqlalchemy.exc.OperationalError",
        "sqlalchemy.exc.TimeoutError",
        "thrift.transport.TTransport.TTransportException",
    }
)
_REFUSED_TYPES = frozenset(
    {
        "azure.core.exceptions.ClientAuthenticationError",
        "botocore.exceptions.CredentialRetrievalError",
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.PartialCredentialsError",
        "builtins.PermissionError",
        "obstore.exceptions.PermissionDeniedError",
        "obstore.exceptions.UnauthenticatedError",
        "pyiceberg.exceptions.AuthorizationExpiredError",
        "pyiceberg.exceptions.ForbiddenError",
        "pyiceberg.exceptions.OAuthError",
        "pyiceberg.exceptions.UnauthorizedError",
        "pypaimon.api.rest_exception.ForbiddenException",
        "pypaimon.api.rest_exception.NotAuthorizedException",
        "pypaimon.catalog.catalog_exception.DatabaseNoPermissionException",
        "pypaimon.catalog.catalog_exception.TableNoPermissionException",
    }
)
_TRANSIENT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_REFUSED_TEXT = re.compile(
    r"AWS Error (ACCESS_DENIED|EXPIRED_TOKEN|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|NO_SUCH_BUCKET"
    r"|MISSING_AUTHENTICATION_TOKEN|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT)"
    r"|\b(401 Unauthorized|403 Forbidden)|lacked the necessary privileges|<Code>NoSuchBucket"
    r"|\b(AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|ContainerNotFound)\b"
    r"|CERTIFICATE_VERIFY_FAILED"
    r"|\bHTTP error[;:-]+ ?builder error"  # no request, as plain HTTP is not allowed
)
"""Messages of Arrow, of the client in deltalake and obstore, of Azure, and of OpenSSL."""
_OUTAGE_TEXT = re.compile(
    r"AWS Error (INTERNAL_FAILURE|NETWORK_CONNECTION|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|SLOW_DOWN"
    r"|THROTTLING)"
    r"|\bHTTP error\b|error sending request|Connection refused|[Cc]ould ?n[o']t connect|Timeout waiting"
    r"|\b(408 Request Timeout|429 Too Many Requests|5\d\d (Internal|Bad|Service|Gateway))"
)
_REFUSED_BY_DATABASE = re.compile(
    r"(role|user|database) \".*\" does not exist|(password|\w+) authentication failed"
    r"|pg_hba\.conf (entry|rejects)|server does not support SSL"
    r"|certificate verify failed|server certificate for .* does not match|root certificate file"
    r"|no password supplied|permission denied|is not permitted to log in"
    r"|unable to open database file|attempt to write a readonly database"
)
"""Messages of Postgres, which sends no SQLSTATE if it rejects a connection, and of SQLite."""
_REFUSED_SQLSTATES = ("28", "3D", "42501")
_READ_ONLY_SQLSTATE = "25006"
"""Sent by a Postgres standby that is not promoted."""


def cause_of(error: BaseException) -> ErrorCause:
    """Classify an error by its type, its code, or its text."""
    names = set(_type_names(error))
    if names & _REFUSED_TYPES:
        return ErrorCause.REFUSED
    if names & {"sqlalchemy.exc.DBAPIError", "psycopg.Error"}:
        return _of_database(error, names)
    if "botocore.exceptions.ClientError" in names:
        return _of_status(error)
    text = str(error)
    if _REFUSED_TEXT.search(text):
        return ErrorCause.REFUSED
    if "azure.core.exceptions.HttpResponseError" in names:
        return _of_response(getattr(error, "status_code", None) or 0)
    if names & _OUTAGE_TYPES:
        is_bad_input = isinstance(error, ValueError)  # for example an invalid address
        return ErrorCause.UNKNOWN if is_bad_input else ErrorCause.OUTAGE
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return ErrorCause.OUTAGE
    return ErrorCause.OUTAGE if _OUTAGE_TEXT.search(text) else ErrorCause.UNKNOWN


def retryable(error: BaseException) -> type[RetryableError]:
    """The error class to raise if nothing was changed: `AccessRefusedError` after a refusal."""
    return AccessRefusedError if cause_of(error) is ErrorCause.REFUSED else RetryableError


def _type_names(error: BaseException) -> Iterator[str]:
    return (f"{one.__module__}.{one.__qualname__}" for one in type(error).__mro__)


def _of_database(error: BaseException, names: set[str]) -> ErrorCause:
    sqlstate = str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")
    if sqlstate.startswith(_REFUSED_SQLSTATES) or _REFUSED_BY_DATABASE.search(str(error)):
        return ErrorCause.REFUSED
    is_outage = names & _OUTAGE_TYPES or sqlstate == _READ_ONLY_SQLSTATE
    return ErrorCause.OUTAGE if is_outage else ErrorCause.UNKNOWN


def _of_status(error: BaseException) -> ErrorCause:
    """Classify the HTTP status of a boto3 response."""
    response = getattr(error, "response", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _of_response(status, str(response.get("Error", {}).get("Code", "")))


def _of_response(status: int, code: str = "") -> ErrorCause:
    if status == 429 or status >= 500 or "Throttl" in code:
        return ErrorCause.OUTAGE
    is_refused = status in (401, 403) or re.search("AccessDenied|Token|Unrecognized|Signature", code)
    return ErrorCause.REFUSED if is_refused else ErrorCause.UNKNOWN
