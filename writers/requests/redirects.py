"""Redirects are not followed, and stop the writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...committers.errors import AccessRefusedError
from ...committers.redirects import redirect_message
from .results import Fatal


def redirected(status: int, headers: Mapping[str, str]) -> Fatal:
    """Return the result of a request that was redirected. Deliveries continue once it is corrected."""
    return Fatal(str(status), redirect_message(headers), AccessRefusedError)


class WithoutRedirects:
    """A session of aiohttp, for a library that makes requests with it and leaves redirects to their default.

    aiohttp would send the rows and headers such as `X-Amz-Security-Token` to the other address.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.request(*args, **{**kwargs, "allow_redirects": False})

    async def close(self) -> None:
        await self._session.close()
