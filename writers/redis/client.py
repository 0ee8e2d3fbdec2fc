"""The client of a Redis server. Only here and in `target` the library connects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.asyncio.retry import Retry as Retries
from redis.backoff import NoBackoff

from ..requests.entry import Entry
from ..requests.results import DELIVERED, Result
from .errors import classify
from .fence import SCRIPT, Fenced, results_of, script_arguments
from .target import RedisTarget

Command: TypeAlias = tuple[str | bytes | int, ...]


class RedisClient:
    """See `Client` and `ErrorClassifier`. The retries of the library are off: the writer retries.

    Args:
        connections: as many as there may be requests in flight
    """

    def __init__(self, target: RedisTarget, connections: int) -> None:
        self._target = target
        self._connections = connections
        self._redis: Any = None
        self._is_between = False
        """See `script_arguments`."""

    async def submit(self, entries: Sequence[Entry[Command | Fenced]]) -> Result | Sequence[Result]:
        if self._redis is None:
            self._redis = self._open()
        fenced: list[Fenced] = []
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            if isinstance(entry.payload, Fenced):
                fenced.append(entry.payload)
            else:
                pipeline.execute_command(*entry.payload)
        if fenced:
            return await self._send_fenced(self._redis, fenced)
        replies = await pipeline.execute(raise_on_error=False)
        return [classify(reply) if isinstance(reply, Exception) else DELIVERED for reply in replies]

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    def classify(self, error: Exception) -> Result:
        return classify(error)

    async def _send_fenced(self, redis: Any, entries: Sequence[Fenced]) -> Sequence[Result]:
        target = self._target
        arguments = script_arguments(
            entries, target.structure, target.length_max, is_between=self._is_between
        )
        done, is_between, failure = await redis.execute_command("EVAL", SCRIPT, *arguments)
        self._is_between = bool(is_between)
        return results_of(entries, done, failure.decode(errors="replace"))

    def _open(self) -> Redis:
        return Redis(
            **self._target.arguments,
            socket_timeout=None,  # the writer limits the time of a request
            max_connections=self._connections,
            retry=Retries(NoBackoff(), 0),
        )
