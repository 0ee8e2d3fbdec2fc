"""The HTTP session of aiobotocore, which would follow redirects."""

from __future__ import annotations

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession

from ..requests.redirects import WithoutRedirects


class HttpSession(AIOHTTPSession):  # type: ignore[misc]  # no types
    """See `WithoutRedirects`."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return WithoutRedirects(await super()._get_session(proxy_url))
