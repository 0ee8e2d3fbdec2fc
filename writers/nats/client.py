"""The client of NATS. Messages of all requests share a connection, on which their acknowledgments arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..requests.entry import Entry
from ..requests.results import DeadLetter, Failure, Result
from .errors import classify, result_of
from .message import Message
from .target import NatsTarget, close

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg


class NatsClient:
    """See `Client` and `ErrorClassifier`."""

    def __init__(self, target: NatsTarget) -> None:
        self._target = target
        self._connection: _Connection | None = None
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def submit(self, entries: Sequence[Entry[Message]]) -> Sequence[Result]:
        connection = await self._connect()
        try:
            return await connection.publish([entry.payload for entry in entries])
        except asyncio.CancelledError:
            self._leave(connection)
            raise

    async def close(self) -> None:
        if self._connection is not None:
            self._leave(self._connection)
        await asyncio.gather(*self._closing)

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    async def _connect(self) -> _Connection:
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                self._connection = await _Connection.open(self._target)
            return self._connection

    def _leave(self, connection: _Connection) -> None:
        """Close a connection whose responses do not arrive: the next request opens another one.

        What is in flight on it is sent again, with the same ids.
        """
        if self._connection is connection:
            self._connection = None
        closing = asyncio.get_running_loop().create_task(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Connection:
    def __init__(self) -> None:
        self._client: Client | None = None
        self._inbox = ""
        self._numbers = itertools.count()
        self._acks: dict[str, asyncio.Future[Msg]] = {}

    @classmethod
    async def open(cls, target: NatsTarget) -> _Connection:
        connection = cls()
        client = await target.connect(connection._on_error, connection._on_closed)
        connection._client, connection._inbox = client, client.new_inbox()
        # No limits: a response that the library drops would be waited for.
        await client.subscribe(
            f"{connection._inbox}.*", cb=connection._on_ack, pending_msgs_limit=0, pending_bytes_limit=0
        )
        return connection

    @property
    def is_closed(self) -> bool:
        return self._client is None or self._client.is_closed

    async def publish(self, messages: Sequence[Message]) -> list[Result]:
        """Publish the messages in their order, and wait for all acknowledgments."""
        tokens: list[str] = []
        waiting: list[asyncio.Future[Msg] | Result] = []
        try:
            for message in messages:
                token, ack = str(next(self._numbers)), asyncio.get_running_loop().create_future()
                waiting.append(await self._send(message, token, ack))
                tokens.append(token)
            acks = [one for one in waiting if isinstance(one, asyncio.Future)]
            if acks:
                await asyncio.wait(acks)
        finally:
            for token in tokens:
                self._acks.pop(token, None)
        return [_result(one, message) for one, message in zip(waiting, messages, strict=True)]

    async def _send(
        self, message: Message, token: str, ack: asyncio.Future[Msg]
    ) -> asyncio.Future[Msg] | Result:
        assert self._client is not None
        if message.size_bytes > self._client.max_payload:  # the server would close the connection
            return DeadLetter(
                "MAX_PAYLOAD",
                f"the message has {message.size_bytes:,} bytes with its headers, and the server's "
                f"max_payload is {self._client.max_payload:,}",
            )
        from nats import errors

        self._acks[token] = ack
        try:
            await self._client.publish(
                message.subject, message.data, reply=f"{self._inbox}.{token}", headers=dict(message.headers)
            )
        except (errors.Error, OSError) as error:  # results of the messages before it may have arrived
            return classify(error)
        return ack

    async def close(self) -> None:
        if self._client is not None:
            await close(self._client)
        await self._on_closed()

    async def _on_ack(self, ack: Msg) -> None:
        waiting = self._acks.pop(ack.subject.rpartition(".")[2], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(ack)

    async def _on_error(self, error: Exception) -> None:
        """A message that the user may not publish has no response."""
        if "permissions violation" in str(error).lower():
            self._fail(error)

    async def _on_closed(self) -> None:
        error = None if self._client is None else self._client.last_error
        self._fail(error or ConnectionError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        for ack in self._acks.values():
            if not ack.done():
                ack.set_exception(error)
        self._acks.clear()


def _result(done: asyncio.Future[Msg] | Result, message: Message) -> Result:
    if not isinstance(done, asyncio.Future):
        return done
    error = done.exception()
    if error is None:
        return result_of(done.result(), message.subject)
    assert isinstance(error, Exception)
    return classify(error)
