"""A connection to Elasticsearch that does not follow redirects."""

from __future__ import annotations

from typing import Any

from elastic_transport import AiohttpHttpNode

from ..requests.redirects import WithoutRedirects


class Node(AiohttpHttpNode):
    """See `WithoutRedirects`."""

    session: Any

    def _create_aiohttp_session(self) -> None:
        super()._create_aiohttp_session()
        self.session = WithoutRedirects(self.session)
