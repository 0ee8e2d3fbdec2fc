"""The client of an AWS service."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from ..requests.entry import Entry
from ..requests.limits import Limits
from ..requests.results import Failure, Result
from .errors import classify, reading_an_answer
from .signed import SentSecrets
from .target import CONNECT_S, AwsTarget

PayloadT = TypeVar("PayloadT")

READ_S_MORE = 5.0
"""The writer ends a request before the client does."""


class AwsClient(ABC, Generic[PayloadT]):
    """See `Client` and `ErrorClassifier`. The retries of aiobotocore are off: the writer retries.

    Args:
        limits: those of the writer
    """

    def __init__(self, target: AwsTarget, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._sent = SentSecrets()

    @property
    def sent_secrets(self) -> Collection[str]:
        """See `SendsSecrets`."""
        return self._sent.values

    @abstractmethod
    async def send(self, client: Any, entries: Sequence[Entry[PayloadT]]) -> Failure | Sequence[Result]:
        """Make one request. See `Client.submit`."""

    async def prepare(self, client: Any) -> None:
        """Called once, before the first request."""

    async def submit(self, entries: Sequence[Entry[PayloadT]]) -> Failure | Sequence[Result]:
        async with self._opening:
            if self._client is None:
                self._client = await self._open()
        with reading_an_answer():
            return await self.send(self._client, entries)

    async def close(self) -> None:
        await self._stack.aclose()

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    async def _open(self) -> Any:
        from .connection import open_client

        limits = self._limits
        opening = open_client(
            self._target.arguments,
            connect_timeout=CONNECT_S,
            read_timeout=limits.request_timeout_s + READ_S_MORE,
            max_pool_connections=limits.in_flight_requests_max,
            retries={"total_max_attempts": 1},
            parameter_validation=False,  # by the service, too; it takes as long as to send the rows
        )
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(opening)
            self._sent.watch(client)
            with reading_an_answer():
                await self.prepare(client)
            self._stack = stack.pop_all()
        return client
