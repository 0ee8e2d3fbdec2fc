"""The client of OpenSearch. Only here opensearch-py is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...committers.errors import ConfigurationError
from ..requests.client import classify_error
from ..requests.results import Failure, Fatal, Retry
from .client import SHOWN, SearchClient
from .requests import SearchRequests
from .results import result_of_request
from .target import SearchTarget


@dataclass(frozen=True, slots=True)
class OpenSearchRequests(SearchRequests):
    """See `SearchRequests`."""

    def new_client(self) -> OpenSearchClient:
        return OpenSearchClient(self.target, self.settings.limits)

    def classify(self, error: Exception) -> Failure:
        return classify(error)


class OpenSearchClient(SearchClient):
    """See `SearchClient`."""

    def open(self, timeout_s: float) -> Any:
        from opensearchpy import AsyncOpenSearch

        from .opensearch_connection import Connection

        connections = self._limits.in_flight_requests_max
        arguments = _arguments(self._target, timeout_s)
        return AsyncOpenSearch(**arguments, maxsize=connections, connection_class=Connection)

    async def send(self, client: Any, body: bytes) -> Any:
        target = self._target
        parameters = {"filter_path": ",".join(SHOWN)}
        if target.pipeline is not None:
            parameters["pipeline"] = target.pipeline
        return await client.bulk(body=body, index=target.index, params=parameters)

    def classify(self, error: Exception) -> Failure:
        return classify(error)


def classify(error: Exception) -> Failure:
    """Return the result of a request that raised this error. A response that was cut off is retried."""
    from opensearchpy import exceptions as library

    code, message = type(error).__name__, str(error)
    if isinstance(error, (library.SSLError, library.ImproperlyConfigured)):
        return Fatal(code, message, ConfigurationError)
    if isinstance(error, (library.ConnectionError, library.SerializationError)):
        return Retry(code, message)
    if isinstance(error, library.TransportError) and isinstance(error.status_code, int):
        headers = getattr(error, "headers", {})  # of errors of our own connection
        return result_of_request(error.status_code, error.info or error.error, headers)
    return classify_error(error)


def _arguments(target: SearchTarget, timeout_s: float) -> dict[str, Any]:
    host = target.host
    return {
        "hosts": [{"host": host["host"], "port": host["port"], "url_prefix": host["path"]}],
        "use_ssl": host["scheme"] == "https",
        "headers": target.headers,
        "timeout": timeout_s,
        "max_retries": 0,
        "retry_on_timeout": False,
    }
