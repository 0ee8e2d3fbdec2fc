"""The client of a Redis server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..requests.acknowledgements import UNACKNOWLEDGED
from ..requests.entry import Entry
from ..requests.results import DELIVERED, Failure, Result
from .connection import open_redis
from .errors import classify, of_key
from .fence import SCRIPT, Fenced, results_of, script_arguments
from .row_hashes import Command, RowCommands
from .target import RedisTarget

Payload: TypeAlias = Command | RowCommands | Fenced


class RedisClient:
    """See `Client` and `ErrorClassifier`.

    Args:
        connections: as many as there may be requests in flight
    """

    def __init__(self, target: RedisTarget, connections: int) -> None:
        self._target = target
        self._connections = connections
        self._redis: Any = None
        self._is_between = False
        """See `script_arguments`."""

    async def submit(self, entries: Sequence[Entry[Payload]]) -> Failure | Sequence[Result]:
        if self._redis is None:
            self._redis = self._open()
        fenced: list[Fenced] = []
        of_entries: list[tuple[Command, ...]] = []
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            if isinstance(entry.payload, Fenced):
                fenced.append(entry.payload)
            else:
                payload = entry.payload
                of_entries.append(payload.commands if isinstance(payload, RowCommands) else (payload,))
                for command in of_entries[-1]:
                    pipeline.execute_command(*command)
        if fenced:
            return await self._send_fenced(self._redis, fenced)
        replies = iter(await pipeline.execute(raise_on_error=False))
        return [
            self._result_of_all(entry, [(command[0], next(replies)) for command in commands])
            for entry, commands in zip(entries, of_entries, strict=True)
        ]

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    def _result_of_all(
        self, entry: Entry[Payload], replies: Sequence[tuple[str | bytes | int, object]]
    ) -> Result:
        """Return the result of an entry: that of the first command that was not acknowledged, if any."""
        results = (self._result(entry, command, reply) for command, reply in replies)
        return next((result for result in results if result != DELIVERED), DELIVERED)

    def _result(self, entry: Entry[Payload], command: str | bytes | int, reply: object) -> Result:
        """Return the result of an entry, whose command has the reply that its documentation gives."""
        if not isinstance(reply, Exception):
            return DELIVERED if _REPLIES[command](reply) else UNACKNOWLEDGED
        if refused := of_key(str(reply)):
            key: Any = entry.key
            return refused.result(key, has_columns=self._target.has_columns)
        return classify(reply)

    async def _send_fenced(self, redis: Any, entries: Sequence[Fenced]) -> Failure | Sequence[Result]:
        target = self._target
        arguments = script_arguments(
            entries, target.structure, target.length_max, is_between=self._is_between
        )
        reply = await redis.execute_command("EVAL", SCRIPT, *arguments)
        results, self._is_between = results_of(
            entries, reply, is_between=self._is_between, has_columns=target.has_columns
        )
        return results

    def _open(self) -> Any:
        return open_redis(
            self._target.arguments,
            socket_timeout=None,  # the writer limits the time of a request
            max_connections=self._connections,
        )


def _is_number(reply: object, smallest: int) -> bool:
    return isinstance(reply, int) and not isinstance(reply, bool) and reply >= smallest


_ENTRY_ID = re.compile(rb"\d+-\d+")
_REPLIES: Mapping[str | bytes | int, Callable[[object], bool]] = {
    "SET": lambda reply: reply is True,  # what the library makes of OK
    "HSET": lambda reply: _is_number(reply, 0),  # fields that were added; 0 if it was there
    "DEL": lambda reply: _is_number(reply, 0),  # keys that were deleted; 0 if it was not there
    "HDEL": lambda reply: _is_number(reply, 0),
    "RPUSH": lambda reply: _is_number(reply, 1),  # the length of the list
    "XADD": lambda reply: isinstance(reply, bytes) and _ENTRY_ID.fullmatch(reply) is not None,
}
"""Whether a reply acknowledges the command."""
