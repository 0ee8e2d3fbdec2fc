"""A connection to a Redis server, for rows and for checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ..requests.answers import ANSWER_BYTES_MAX, AnswerTooLargeError


class _BoundedStream:
    """What the parsers read from."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.left = ANSWER_BYTES_MAX

    async def read(self, size: int) -> bytes:
        return self._taken(await self._stream.read(size))

    async def readline(self) -> bytes:
        return self._taken(await self._stream.readline())

    async def readexactly(self, size: int) -> bytes:
        if size > self.left:
            raise AnswerTooLargeError
        return self._taken(await self._stream.readexactly(size))

    def at_eof(self) -> bool:
        return bool(self._stream.at_eof())

    def _taken(self, received: bytes) -> bytes:
        self.left -= len(received)
        if self.left < 0:
            raise AnswerTooLargeError
        return received


class _BoundedParser(DefaultParser):  # type: ignore[misc, valid-type]  # one of two
    """Bounds each reply."""

    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)
        self._stream: Any = _BoundedStream(self._stream)

    async def read_response(self, *args: Any, **arguments: Any) -> Any:
        if isinstance(self._stream, _BoundedStream):
            self._stream.left = ANSWER_BYTES_MAX
        return await super().read_response(*args, **arguments)


def open_redis(arguments: Mapping[str, Any], **more: Any) -> Any:
    """Return a client of the library. Its retries are off: the writer retries.

    Args:
        arguments: of the library, from the target
        more: further arguments of the library
    """
    client = Redis(**arguments, protocol=2, retry=Retry(NoBackoff(), 0), **more)
    client.connection_pool.connection_kwargs["parser_class"] = _BoundedParser
    return client
