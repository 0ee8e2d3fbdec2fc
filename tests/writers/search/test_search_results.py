"""What the errors of OpenSearch, Elasticsearch and their libraries mean."""

from __future__ import annotations

from typing import Any

import elastic_transport as transport
import elasticsearch
import pytest
from opensearchpy import exceptions as opensearchpy

from penstock.committers.errors import AccessRefusedError, ConfigurationError, PenstockError
from penstock.writers.requests.results import DELIVERED, DeadLetter, Fatal, Result, Retry, Split
from penstock.writers.search import elasticsearch as ours_for_elasticsearch
from penstock.writers.search import opensearch as ours_for_opensearch
from penstock.writers.search.results import Operation, result_of_item


def body_of(code: str, reason: str = "why") -> dict[str, Any]:
    return {"error": {"type": code, "reason": reason, "root_cause": [{"reason": reason}]}}


def by_opensearch(status: int, code: str) -> Result:
    return ours_for_opensearch.classify(opensearchpy.TransportError(status, code, body_of(code)))


def by_elasticsearch(status: int, code: str) -> Result:
    meta = transport.ApiResponseMeta(
        status, "1.1", transport.HttpHeaders(), 0.1, transport.NodeConfig("http", "h", 1)
    )
    return ours_for_elasticsearch.classify(elasticsearch.ApiError(code, meta, body_of(code)))


def item(status: int, code: str, reason: str = "why", operation: Operation = "index") -> Result:
    return result_of_item({operation: {"status": status, **body_of(code, reason)}}, operation)


@pytest.mark.parametrize("classified", [by_opensearch, by_elasticsearch, item])
@pytest.mark.parametrize(
    ("status", "code", "is_throttled"),
    [
        *[(429, code, True) for code in ("rejected_execution_exception", "circuit_breaking_exception")],
        (429, "cluster_block_exception", True),
        (503, "unavailable_shards_exception", True),
        (500, "internal", False),
        (502, "bad gateway", False),
        (504, "gateway timeout", False),
        (408, "timeout", False),
    ],
)
def test_what_passes_is_retried(classified: Any, status: int, code: str, is_throttled: bool) -> None:
    result = classified(status, code)
    assert isinstance(result, Retry)
    assert (result.code, result.is_throttled) == (code, is_throttled)


@pytest.mark.parametrize("classified", [by_opensearch, by_elasticsearch, item])
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "security_exception", "Check the credentials"),
        (403, "security_exception", "Check the permissions of these credentials"),
        (403, "cluster_block_exception", "the blocks of the index"),
        (404, "index_not_found_exception", "Check the option index, or create the index"),
    ],
)
def test_what_no_other_row_would_change_stops_the_writer(
    classified: Any, status: int, code: str, said: str
) -> None:
    result = classified(status, code)
    assert isinstance(result, Fatal)
    assert result.error is AccessRefusedError
    assert said in result.message


@pytest.mark.parametrize("classified", [by_opensearch, by_elasticsearch])
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (413, "too large", Split),
        (400, "action_request_validation_exception", Split),
        (400, "media_type_header_exception", Fatal),
        (302, "moved", Fatal),
    ],
)
def test_only_what_some_row_causes_splits_a_request(
    classified: Any, status: int, code: str, kind: type[Result]
) -> None:
    """A request that no row makes better must not become dead letters."""
    result = classified(status, code)
    assert isinstance(result, kind)
    assert not isinstance(result, Fatal) or issubclass(result.error, ConfigurationError)


@pytest.mark.parametrize(
    "code",
    ["mapper_parsing_exception", "strict_dynamic_mapping_exception", "document_parsing_exception"],
)
def test_a_document_that_is_refused_for_good_is_a_dead_letter(code: str) -> None:
    assert item(400, code) == DeadLetter(code, "why.")


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        ("illegal_argument_exception", "pipeline with id [p] does not exist", "option pipeline"),
        ("illegal_argument_exception", "no write index is defined for alias [a]. The", "is_write_index"),
        ("illegal_argument_exception", "only write ops with an op_type of create are", '"create"'),
        ("index_closed_exception", "closed", "Open the index"),
        ("routing_missing_exception", "routing is required", "option routing"),
    ],
)
def test_what_all_documents_would_get_is_no_dead_letter(code: str, reason: str, said: str) -> None:
    """With badRows=drop, all rows would be lost."""
    result = item(400, code, reason)
    assert isinstance(result, Fatal)
    assert said in result.message
    assert item(400, "illegal_argument_exception", "Limit of total fields") == DeadLetter(
        "illegal_argument_exception", "Limit of total fields."
    )


def test_a_document_that_is_there_already_is_delivered() -> None:
    assert item(409, "version_conflict_engine_exception", operation="create") == DELIVERED
    assert isinstance(item(409, "version_conflict_engine_exception"), Retry)


@pytest.mark.parametrize(
    ("classify", "error", "kind"),
    [
        (ours_for_opensearch.classify, opensearchpy.ConnectionError("N/A", "e", OSError()), Retry),
        (ours_for_opensearch.classify, opensearchpy.ConnectionTimeout("TIMEOUT", "e", OSError()), Retry),
        (ours_for_opensearch.classify, opensearchpy.SerializationError("e"), Retry),
        (ours_for_opensearch.classify, opensearchpy.SSLError("N/A", "e", OSError()), ConfigurationError),
        (ours_for_opensearch.classify, opensearchpy.ImproperlyConfigured("e"), ConfigurationError),
        (ours_for_opensearch.classify, ConnectionResetError(), Retry),
        (ours_for_elasticsearch.classify, transport.ConnectionError("e"), Retry),
        (ours_for_elasticsearch.classify, transport.ConnectionTimeout("e"), Retry),
        (ours_for_elasticsearch.classify, transport.SerializationError("e"), Retry),
        (ours_for_elasticsearch.classify, transport.TlsError("e"), ConfigurationError),
        (ours_for_elasticsearch.classify, ConnectionResetError(), Retry),
    ],
)
def test_errors_of_the_connection(classify: Any, error: Exception, kind: type[Retry | PenstockError]) -> None:
    result = classify(error)
    assert isinstance(result, Retry) if kind is Retry else result.error is kind
