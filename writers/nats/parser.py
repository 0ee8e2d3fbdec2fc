"""Bounds what the client of NATS reads before it has a whole message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.protocol.parser import Parser

from ..requests.answers import ANSWER_BYTES_MAX, AnswerTooLargeError

if TYPE_CHECKING:
    from nats.aio.client import Client


class _BoundedParser(Parser):
    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        if max(len(self.buf), self.needed) > ANSWER_BYTES_MAX:
            raise AnswerTooLargeError  # the library closes the connection


def bounded_parser(client: Client) -> Parser:
    return _BoundedParser(client)
