"""The destination `penstock.elasticsearch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...writers.search.elasticsearch import ElasticsearchRequests
from ..options.declaring import optional
from ..options.parsing import text
from ..requests.service import RequestService
from .options import SearchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticsearchOptions(SearchOptions):
    """Options of `penstock.elasticsearch`."""

    NAME: ClassVar[str] = "penstock.elasticsearch"
    KIND: ClassVar[str] = "elasticsearch"

    api_key: str | None = optional(
        "apiKey",
        text,
        "API key in its encoded form, instead of a user. Never shown or stored.",
        is_secret=True,
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = SearchOptions.problems(values)
        if "api_key" in values and "username" in values:
            problems.append("apiKey and username contradict each other. Give one of them.")
        return problems


def _requests(options: ElasticsearchOptions) -> ElasticsearchRequests:
    target = replace(options.target, api_key=options.api_key)
    return ElasticsearchRequests(
        options.address,
        options.ordered_settings,
        options.id_column,
        target,
        options.routing,
        options.search_changes,
    )


SERVICE = RequestService(
    kind="elasticsearch",
    options=ElasticsearchOptions,
    requests=_requests,
    library="elasticsearch",
    package="penstock[elasticsearch]",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock.datasource.search.sources:ElasticsearchDataSource")
