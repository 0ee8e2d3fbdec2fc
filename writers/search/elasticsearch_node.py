"""A connection to Elasticsearch with bounded answers, which does not follow redirects."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from elastic_transport import AiohttpHttpNode

from ..requests.http_answers import open_session
from ..requests.redirects import WithoutRedirects


class Node(AiohttpHttpNode):
    """See `BoundedResponse` and `WithoutRedirects`."""

    session: Any

    def _create_aiohttp_session(self) -> None:
        self._loop = asyncio.get_running_loop()
        session = open_session(
            headers=self.headers,
            skip_auto_headers=("accept", "accept-encoding", "user-agent"),
            connector=aiohttp.TCPConnector(
                limit_per_host=self._connections_per_node, ssl=self._ssl_context or True
            ),
        )
        self.session = WithoutRedirects(session)
