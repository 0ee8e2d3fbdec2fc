"""A connection to OpenSearch whose errors have the headers of the response, which the library leaves out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from opensearchpy import AIOHttpConnection
from opensearchpy.exceptions import TransportError

ASKS_TO_WAIT = (429, 503)
"""Responses that may have the header Retry-After."""


class AskedToWaitError(TransportError):
    """A response with one of these statuses."""

    def __init__(self, status: int, text: str, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(status, text, body)
        self.headers = headers


class Connection(AIOHttpConnection):
    """See `AskedToWaitError`."""

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
        passed = (*ignore, *ASKS_TO_WAIT)
        status, got, text = await super().perform_request(method, url, params, body, timeout, passed, headers)
        if status in ASKS_TO_WAIT and status not in ignore:
            parsed: Any = None
            with suppress(ValueError):
                parsed = json.loads(text)
            raise AskedToWaitError(status, text, parsed, got)
        return status, got, text
