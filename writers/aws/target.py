"""Where requests to an AWS service go, and who signs them. No library is loaded before it is needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ...committers.texts.secrets import Secrets
from ..requests.results import Fatal, Retry
from .errors import MISSING, classify, reading_an_answer
from .signed import SentSecrets

CONNECT_S = 10.0
CHECK_S = 20.0
CHECK_TRIES = 3


@dataclass(frozen=True, slots=True)
class AwsTarget:
    """One resource of a service. Pickled to the executors, with the credentials."""

    service: str
    """botocore's name of the service."""
    region: str
    resource: str
    """Name of the stream, table or queue."""
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    """None: the default chain of credentials."""
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `create_client`."""
        return {
            "service_name": self.service,
            "region_name": self.region,
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
        }

    def ask(self, operation: str, answer: str, **parameters: str) -> Any:
        """Make one call and return the field `answer` of its response. For checks, not for rows.

        Raises:
            ConfigurationError: the resource does not exist.
            AccessRefusedError: the credentials do not allow the call.
            RetryableError: the service does not answer, or something else does.
        """
        sent = SentSecrets()
        try:
            return asyncio.run(self._ask(operation, answer, parameters, sent))
        except Exception as error:  # noqa: BLE001  of any type
            refused = self._refused(operation, error)
            raise type(refused)(Secrets(sent.values).mask(str(refused))) from None

    async def _ask(self, operation: str, answer: str, parameters: dict[str, str], sent: SentSecrets) -> Any:
        from .connection import open_client

        retries = {"mode": "standard", "total_max_attempts": CHECK_TRIES}
        opening = open_client(
            self.arguments, connect_timeout=CONNECT_S, read_timeout=CHECK_S, retries=retries
        )
        async with opening as client:
            sent.watch(client)
            with reading_an_answer():
                return (await getattr(client, operation)(**parameters))[answer]

    def _refused(self, operation: str, error: Exception) -> PenstockError:
        result = classify(error)
        message = f"{self.service} {self.resource} in {self.region} cannot be checked ({operation}): "
        if isinstance(result, Fatal):
            if result.code in MISSING:
                return ConfigurationError(f"{message}{result.code}. {result.message} Nothing was written.")
            return result.error(f"{message}{result.code}. {result.message}")
        if isinstance(result, Retry):
            return RetryableError(f"{message}{result.code}. {result.message}")
        return ConfigurationError(f"{message}{error}")
