"""Connections to OpenSearch whose errors have the headers of the response, which the library leaves out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from opensearchpy import AIOHttpConnection, Urllib3HttpConnection
from opensearchpy.exceptions import TransportError

from ..requests.redirects import WithoutRedirects

WITH_HEADERS = (429, 503, *range(300, 400))
"""Responses that may have the header Retry-After, and redirects."""


class HeadersError(TransportError):
    """A response with one of these statuses."""

    def __init__(self, status: int, text: str, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(status, text, body)
        self.headers = headers


class Connection(AIOHttpConnection):
    """See `HeadersError`. Redirects are not followed."""

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

    async def _create_aiohttp_session(self) -> Any:
        await super()._create_aiohttp_session()
        self.session: Any = WithoutRedirects(self.session)


class CheckingConnection(Urllib3HttpConnection):
    """See `HeadersError`. The library does not follow redirects here."""

    def perform_request(
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
        return _checked(super().perform_request(method, url, params, body, timeout, passed, headers), ignore)


def _checked(response: tuple[int, Mapping[str, str], str], ignore: Collection[int]) -> Any:
    status, headers, text = response
    if status not in WITH_HEADERS or status in ignore:
        return response
    parsed: Any = None
    with suppress(ValueError):
        parsed = json.loads(text)
    raise HeadersError(status, text, parsed, headers)
