"""Connections to OpenSearch whose errors have the headers of the response, which the library leaves out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from opensearchpy import AIOHttpConnection
from opensearchpy.exceptions import TransportError

from ..requests.http_answers import open_session
from ..requests.redirects import WithoutRedirects

WITH_HEADERS = (429, 503, *range(300, 400))
"""Responses that may have the header Retry-After, and redirects."""


class HeadersError(TransportError):
    """A response with one of these statuses."""

    def __init__(self, status: int, text: str, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(status, text, body)
        self.headers = headers


class Connection(AIOHttpConnection):
    """See `HeadersError`. Answers are bounded, and redirects are not followed."""

    async def _create_aiohttp_session(self) -> None:
        self.loop = asyncio.get_running_loop()
        session = open_session(
            headers=self.headers,
            skip_auto_headers=("accept", "accept-encoding"),
            connector=aiohttp.TCPConnector(limit=self._limit or 0, ssl=self._ssl_context or True),
        )
        self.session: Any = WithoutRedirects(session)

    async def perform_request(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        ignore: Collection[int] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        passed = (*ignore, *WITH_HEADERS)
        response = await super().perform_request(method, url, params, body, timeout, passed, headers)
        return _checked(response, ignore)


def _checked(response: tuple[int, Mapping[str, str], str], ignore: Collection[int]) -> Any:
    status, headers, text = response
    if status not in WITH_HEADERS or status in ignore:
        return response
    parsed: Any = None
    with suppress(ValueError):
        parsed = json.loads(text)
    raise HeadersError(status, text, parsed, headers)
