"""The destinations of this package pass the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.aws import AwsServer
from servers.http_rows import HttpRows
from servers.opensearch import OpenSearchServer, elasticsearch_proxy
from servers.redis import RedisServer
from tests.conformance.harnesses import (
    AwsHarness,
    DeduplicatingHttpHarness,
    DeltaHarness,
    DeltaLibraryHarness,
    DynamoDbHarness,
    ElasticsearchHarness,
    FirehoseHarness,
    HttpHarness,
    IcebergHarness,
    KinesisHarness,
    OpenSearchHarness,
    PostgresHarness,
    RedisHarness,
    RedisStreamHarness,
    SqsFifoHarness,
    SqsHarness,
)

from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delta.sink import DeltaTarget
from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestDelta(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DeltaHarness(tmp_path)


@pytest.mark.slow
class TestDeltaByTheLibrary(DestinationConformance):
    """Where only the Delta library reaches the log, it makes all commits."""

    @pytest.fixture
    def harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        snapshot_cache = SnapshotCache(open_files=lambda _uri, _options: None)
        for init in (DeltaTarget.__init__, DeltaTableCommitter.__init__):
            assert init.__kwdefaults__ is not None
            monkeypatch.setitem(init.__kwdefaults__, "snapshot_cache", snapshot_cache)
        return DeltaLibraryHarness(tmp_path)


class TestIceberg(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return IcebergHarness(tmp_path)


@pytest.mark.slow
class TestPostgres(DestinationConformance):
    """The manifests are in the same server."""

    @pytest.fixture
    def store(self, new_postgres_url: Callable[[], str]) -> Iterator[SqlManifestStore]:
        with open_store(new_postgres_url()) as store:
            yield store

    @pytest.fixture
    def harness(
        self, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return PostgresHarness(new_postgres_url)


class TestHttp(DestinationConformance):
    """Rows arrive at least once."""

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows) -> DestinationHarness:
        return HttpHarness(tmp_path, http_service)


@pytest.mark.slow
class TestHttpWithKeys(DestinationConformance):
    """Rows arrive exactly once, as the service takes each key once."""

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows) -> DestinationHarness:
        return DeduplicatingHttpHarness(tmp_path, http_service)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [KinesisHarness, FirehoseHarness, DynamoDbHarness, SqsHarness, SqsFifoHarness], scope="class"
)
class TestAws(DestinationConformance):
    """Rows arrive at least once; exactly once where the service knows their keys or ids."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, aws_service: AwsServer, kind: type[AwsHarness]
    ) -> Iterator[DestinationHarness]:
        with kind(tmp_path, aws_service).created() as harness:
            yield harness


@pytest.mark.slow
class TestOpenSearch(DestinationConformance):
    """Rows with an id are there once, however often they are sent."""

    @pytest.fixture
    def harness(self, tmp_path: Path, opensearch: OpenSearchServer) -> Iterator[DestinationHarness]:
        harness = OpenSearchHarness(tmp_path, opensearch)
        yield harness
        harness.drop()  # a node has at most 1000 shards


@pytest.mark.slow
class TestElasticsearch(DestinationConformance):
    """By the library of Elasticsearch."""

    @pytest.fixture(scope="class")
    def url(self, opensearch: OpenSearchServer) -> Iterator[str]:
        with elasticsearch_proxy(opensearch.url) as proxy:
            yield proxy.url

    @pytest.fixture
    def harness(self, tmp_path: Path, opensearch: OpenSearchServer, url: str) -> Iterator[DestinationHarness]:
        harness = ElasticsearchHarness(tmp_path, opensearch, url)
        yield harness
        harness.drop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RedisHarness, RedisStreamHarness], scope="class")
class TestRedis(DestinationConformance):
    """Rows arrive exactly once by their key; in streams at least once."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, redis_service: RedisServer, kind: type[RedisHarness]
    ) -> DestinationHarness:
        return kind(tmp_path, redis_service)
