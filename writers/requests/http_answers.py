"""Bounded answers of all clients that use aiohttp."""

from __future__ import annotations

from typing import Any

import aiohttp

from .answers import ANSWER_BYTES_MAX, AnswerTooLargeError


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose body is read up to the bound. Its class is given to a session."""

    async def read(self) -> bytes:
        if self._body is None:
            self._body = await read_answer(self)
        return self._body


async def read_answer(response: aiohttp.ClientResponse) -> bytes:
    """
    Raises:
        AnswerTooLargeError: the connection is closed.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            response.close()
            raise AnswerTooLargeError
    return bytes(body)


def open_session(**arguments: Any) -> aiohttp.ClientSession:
    """Return a session with bounded answers, without cookies. Libraries use it in place of their own."""
    return aiohttp.ClientSession(
        response_class=BoundedResponse, cookie_jar=aiohttp.DummyCookieJar(), **arguments
    )
