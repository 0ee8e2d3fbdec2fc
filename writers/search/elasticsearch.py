"""The client of Elasticsearch. Only here its library is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ...committers.errors import ConfigurationError
from ..requests.acknowledgements import unreadable
from ..requests.client import classify_error
from ..requests.results import Failure, Fatal, Retry
from .client import SHOWN, SearchClient
from .requests import SearchRequests
from .results import result_of_request
from .target import SearchTarget


@dataclass(frozen=True, slots=True)
class ElasticsearchRequests(SearchRequests):
    """See `SearchRequests`."""

    def new_client(self) -> ElasticsearchClient:
        return ElasticsearchClient(self.target, self.settings.limits)

    def classify(self, error: Exception) -> Failure:
        return classify(error)


class ElasticsearchClient(SearchClient):
    """See `SearchClient`."""

    def open(self, timeout_s: float) -> Any:
        from elasticsearch import AsyncElasticsearch

        from .elasticsearch_node import Node

        connections = self._limits.in_flight_requests_max
        arguments = _arguments(self._target, timeout_s)
        return AsyncElasticsearch(**arguments, connections_per_node=connections, node_class=Node)

    async def send(self, client: Any, body: bytes) -> Any:
        """With POST: aiohttp sends a PUT, which the library would make, a second time itself."""
        target = self._target
        parameters = {"filter_path": ",".join(SHOWN)}
        if target.pipeline is not None:
            parameters["pipeline"] = target.pipeline
        response = await client.perform_request(
            "POST",
            f"/{quote(target.index, safe='')}/_bulk",
            params=parameters,
            headers={"accept": "application/json", "content-type": "application/x-ndjson"},
            body=body,
        )
        return response.body

    def classify(self, error: Exception) -> Failure:
        """Before rows moved, the service was Elasticsearch: something between answers now."""
        from elasticsearch import UnsupportedProductError

        if isinstance(error, UnsupportedProductError):
            return unreadable(str(error))
        return classify(error)


def classify(error: Exception) -> Failure:
    """Return the result of a request that raised this error. A response that was cut off is retried."""
    import elastic_transport as transport
    import elasticsearch as library

    code, message = type(error).__name__, str(error)
    if isinstance(error, library.UnsupportedProductError):
        remedy = "For OpenSearch, use penstock.opensearch."
        return Fatal(code, f"The service is not Elasticsearch. {remedy}", ConfigurationError)
    if isinstance(error, transport.TransportError):
        message = str(error.message)  # its text may lack the cause
    if isinstance(error, transport.TlsError):
        return Fatal(code, message, ConfigurationError)
    if isinstance(
        error, (transport.ConnectionError, transport.ConnectionTimeout, transport.SerializationError)
    ):
        return Retry(code, message)
    if isinstance(error, library.ApiError):
        return result_of_request(error.status_code, error.body, error.meta.headers)
    return classify_error(error)


def _arguments(target: SearchTarget, timeout_s: float) -> dict[str, Any]:
    host = target.host
    host["path_prefix"] = host.pop("path")
    return {
        "hosts": [host],
        "headers": target.headers,
        "request_timeout": timeout_s,
        "max_retries": 0,
        "retry_on_status": (),
        "retry_on_timeout": False,
    }
