"""The destination `penstock.opensearch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...writers.search.opensearch import OpenSearchRequests
from ..requests.service import RequestService
from .options import SearchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSearchOptions(SearchOptions):
    """Options of `penstock.opensearch`."""

    NAME: ClassVar[str] = "penstock.opensearch"
    KIND: ClassVar[str] = "opensearch"


def _requests(options: OpenSearchOptions) -> OpenSearchRequests:
    return OpenSearchRequests(
        options.address,
        options.ordered_settings,
        options.id_column,
        options.target,
        options.routing,
        options.search_changes,
    )


SERVICE = RequestService(
    kind="opensearch",
    options=OpenSearchOptions,
    requests=_requests,
    library="opensearchpy",
    package="penstock[opensearch]",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock.datasource.search.sources:OpenSearchDataSource")
