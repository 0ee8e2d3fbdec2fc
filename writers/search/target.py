"""Where rows go in OpenSearch and Elasticsearch, and who writes them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .results import Operation


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """One index, alias or data stream. Pickled to the executors, with the credentials."""

    url: str
    index: str
    operation: Operation = "index"
    pipeline: str | None = None
    creates_index: bool = False
    is_versioned: bool = False
    """True: each document has the version that its row says."""
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The credentials, in UTF-8: the libraries encode them differently."""
        if self.basic_auth is not None:
            credentials = base64.b64encode(":".join(self.basic_auth).encode()).decode()
            return {"authorization": f"Basic {credentials}"}
        return {} if self.api_key is None else {"authorization": f"ApiKey {self.api_key}"}

    @property
    def host(self) -> dict[str, Any]:
        """Scheme, host, port and path of the URL. The libraries have other default ports than HTTP."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return {"scheme": parts.scheme, "host": parts.hostname, "port": port, "path": parts.path.rstrip("/")}
