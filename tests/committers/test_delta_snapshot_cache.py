"""What a process caches of a Delta table between batches, and when it loads the table again."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from tests.support.streams import VIEWS, DeltaStream, clean_up_log, stream_in

from penstock.committers.contract import Committed, Conflict
from penstock.committers.delta import table as library
from penstock.committers.delta.log_files import LOG, LocalLogFiles, LogFile, entry_name
from penstock.committers.delta.snapshot_cache import (
    ENTRIES_MAX,
    KEPT_S,
    LIBRARY_ONLY_S,
    SnapshotCache,
    TableSnapshot,
)
from penstock.committers.delta.table import committed_version, token_of
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.file_tables.manifest import build_manifest
from penstock.testing.faults import at_point, lossy


class WatchedFiles(LocalLogFiles):
    """Counts the requests, and fails those that the test chooses."""

    def __init__(self, table_uri: str) -> None:
        super().__init__(table_uri)
        self.asked: Counter[str] = Counter()
        self.fails: Callable[[str], bool] = lambda _request: False

    def _ask(self, request: str) -> None:
        self.asked[request] += 1
        if self.fails(request):
            raise OSError("the storage does not answer")

    def read(self, version: int) -> LogFile | None:
        self._ask("read")
        return super().read(version)

    def identity(self, version: int) -> str | None:
        self._ask("identity")
        return super().identity(version)

    def put(self, version: int, content: bytes) -> str:
        self._ask("put")
        return super().put(version, content)


@pytest.fixture
def log(tmp_path: Path) -> WatchedFiles:
    return WatchedFiles(str(tmp_path / "table"))


@pytest.fixture
def snapshot_cache(log: WatchedFiles) -> SnapshotCache:
    return SnapshotCache(open_files=lambda _uri, _options: log)


@pytest.fixture
def stream(tmp_path: Path, snapshot_cache: SnapshotCache) -> DeltaStream:
    """With batch 0 in version 1, all by one process."""
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    assert stream.commit(0, [0]) == Committed(1)
    return stream


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts how often the library loads the table."""
    loads = Mock(side_effect=DeltaTable)
    monkeypatch.setattr(library, "DeltaTable", loads)
    return loads


def append_as_another(stream: DeltaStream, times: int = 1) -> None:
    for _ in range(times):
        write_deltalake(stream.uri, pa.table({"id": [-1], "name": ["foreign"]}), mode="append")


# What a batch costs -----------------------------------------------------------------------------------


def test_a_batch_reads_only_a_few_log_files(stream: DeltaStream, log: WatchedFiles, loads: Mock) -> None:
    log.asked.clear()
    for batch_id in range(1, 4):
        stream.commit(batch_id, [batch_id])
    assert not loads.called
    # To plan, to commit, and after the commit; nothing follows, each time.
    assert log.asked == {"read": 2 * 3, "identity": 3 * 3, "put": 3}
    assert stream.ids() == [0, 1, 2, 3]


def test_a_batch_reads_the_log_entries_of_another_process(
    stream: DeltaStream, tmp_path: Path, log: WatchedFiles, loads: Mock
) -> None:
    """Spark plans in one process and commits in another."""
    snapshot_cache = SnapshotCache(open_files=lambda _uri, _options: log)
    committing = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    committing.committer().commit(stream.prepare(1, [1]))
    loads.reset_mock()
    log.asked.clear()
    for batch_id in range(2, 5):
        committing.committer().commit(stream.prepare(batch_id, [batch_id]))
    assert not loads.called
    assert log.asked == {"read": 3 * 3, "identity": 4 * 3, "put": 3}
    assert stream.ids() == [0, 1, 2, 3, 4]


def test_each_part_of_the_token_is_read_once(stream: DeltaStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each, the library reads the log since its last checkpoint."""
    asked: Counter[str] = Counter()
    ask = DeltaTable.transaction_version

    def counting(table: DeltaTable, app_id: str) -> int | None:
        asked[app_id] += 1
        return ask(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counting)
    new = stream_in(Path(stream.uri).parent, snapshot_cache=VIEWS["a process that goes on"]())
    for batch_id in range(1, 4):
        new.committer().token("query-1")
        new.commit(batch_id, [batch_id])
    assert len(asked) == 3
    assert set(asked.values()) == {1}


def test_a_batch_on_s3_loads_nothing_either(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = DeltaStream(
        f"s3://lake/{uuid.uuid4()}", storage_options=s3, snapshot_cache=VIEWS["a process that goes on"]()
    )
    stream.commit(0, [0])

    with monkeypatch.context() as without_library:
        without_library.setattr(library, "DeltaTable", Mock(side_effect=AssertionError))
        assert stream.commit(1, [1]) == Committed(2)
        assert stream.commit(2, [2]) == Committed(3)
    assert sorted(pl.read_delta(stream.uri, storage_options=s3)["id"]) == [0, 1, 2]


# What others do ---------------------------------------------------------------------------------------


def test_commits_of_others_are_read_one_by_one(stream: DeltaStream, loads: Mock) -> None:
    append_as_another(stream, ENTRIES_MAX)
    assert stream.commit(1, [1]) == Committed(ENTRIES_MAX + 2)
    assert not loads.called


def test_more_commits_of_others_are_loaded(stream: DeltaStream, loads: Mock) -> None:
    append_as_another(stream, ENTRIES_MAX + 1)
    assert stream.commit(1, [1]) == Committed(ENTRIES_MAX + 3)
    assert loads.called


def test_columns_that_others_add_are_noticed(stream: DeltaStream) -> None:
    DeltaTable(stream.uri).alter.add_columns(
        [Field.from_json('{"name":"extra","type":"long","nullable":true,"metadata":{}}')]
    )
    assert stream.commit(1, [1]) == Committed(3)
    assert stream.committer().plan(stream.schema).schema.names == ["id", "name", "extra"]


def test_a_concurrent_driver_is_noticed(stream: DeltaStream, tmp_path: Path) -> None:
    manifest = stream.prepare(1, [1])
    other = stream_in(tmp_path, snapshot_cache=VIEWS["a process that goes on"]())
    with at_point("commit.start", lambda: other.committer().commit(manifest)):
        assert not isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.ids() == [0, 1]


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_a_table_created_again_is_not_taken_for_the_old_one(stream: DeltaStream, versions: int) -> None:
    """Whether its log is as long as the old one's, shorter or longer."""
    manifest = stream.prepare(1, [1])
    shutil.rmtree(stream.uri)
    DeltaTable.create(stream.uri, pa.schema(stream.schema))
    append_as_another(stream, versions - 1)
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        stream.committer().commit(manifest)
    assert DeltaTable(stream.uri).version() == versions - 1


def test_a_log_that_was_cleaned_up_after_the_cached_version_is_loaded(stream: DeltaStream) -> None:
    """The next version does not exist, and is much older than the newest."""
    append_as_another(stream, 3)
    clean_up_log(stream)
    assert stream.commit(1, [1]) == Committed(5)
    assert stream.ids() == [-1, -1, -1, 0, 1]


def test_an_entry_put_into_a_log_that_was_cleaned_up_meanwhile_is_no_commit(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [1])

    def others_commit_and_clean_up() -> None:
        append_as_another(stream, 3)
        clean_up_log(stream)

    with at_point("commit.start", others_commit_and_clean_up):
        with pytest.raises(RetryableError, match="was not committed"):
            stream.committer().commit(manifest)
    assert stream.committer().commit(manifest) == Committed(5)
    assert stream.ids() == [-1, -1, -1, 0, 1]


# What is loaded again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("passed_s", [KEPT_S, -1.0])
def test_an_old_cached_state_is_loaded_again(tmp_path: Path, loads: Mock, passed_s: float) -> None:
    """Also if the clock was set back."""
    now_s = [1000.0]
    snapshot_cache = SnapshotCache(lambda: now_s[0])
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    stream.commit(0, [0])
    loads.reset_mock()
    stream.commit(1, [1])
    assert not loads.called
    now_s[0] += passed_s
    stream.commit(2, [2])
    assert loads.called


@pytest.mark.parametrize("content", [b"\x00", b'{"metaData": broken', b'{"txn":{"appId":"x"}}'])
def test_an_invalid_entry_is_left_to_the_library(stream: DeltaStream, content: bytes) -> None:
    manifest = stream.prepare(1, [1])
    Path(stream.uri, entry_name(2)).write_bytes(content)
    with pytest.raises(RetryableError):
        stream.committer().commit(manifest)
    Path(stream.uri, entry_name(2)).unlink()
    assert stream.committer().commit(manifest) == Committed(2)


@pytest.mark.parametrize("what", ["read", "identity"])
def test_a_log_that_cannot_be_read_by_files_is_left_to_the_library(
    stream: DeltaStream, log: WatchedFiles, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log.fails = lambda asked: asked == what
    with caplog.at_level(logging.INFO, logger="penstock"):
        for batch_id in range(1, 4):
            assert stream.commit(batch_id, [batch_id]) == Committed(batch_id + 1)
    assert stream.ids() == [0, 1, 2, 3]
    logged = [
        record for record in caplog.records if "Commits go through the Delta library" in record.getMessage()
    ]
    assert len(logged) == (what == "identity")


def test_log_files_are_read_again_after_an_error(tmp_path: Path, log: WatchedFiles, loads: Mock) -> None:
    now_s = [1000.0]
    snapshot_cache = SnapshotCache(lambda: now_s[0], open_files=lambda _uri, _options: log)
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    log.fails = lambda asked: asked == "identity"
    stream.commit(0, [0])
    log.fails = lambda _asked: False
    stream.commit(1, [1])
    assert log.asked["put"] == 0

    now_s[0] += LIBRARY_ONLY_S
    stream.commit(2, [2])
    loads.reset_mock()
    stream.commit(3, [3])
    assert not loads.called
    assert stream.ids() == [0, 1, 2, 3]


def test_a_commit_of_unknown_outcome_is_found_in_the_table(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [1])
    with lossy(LocalLogFiles, "put", "response", OSError("fsync: Input/output error")):
        assert stream.committer().commit(manifest) == Committed(2)
    assert stream.ids() == [0, 1]


def test_a_put_that_fails_on_the_local_disk_commits_nothing(stream: DeltaStream, log: WatchedFiles) -> None:
    manifest = stream.prepare(1, [1])
    log.fails = lambda asked: asked == "put"
    with pytest.raises(RetryableError, match=r"the storage does not answer. The batch was not committed"):
        stream.committer().commit(manifest)
    log.fails = lambda _asked: False
    assert stream.committer().commit(manifest) == Committed(2)


# The cached state and the library ---------------------------------------------------------------------


def test_the_cached_state_is_that_of_the_library(stream: DeltaStream, snapshot_cache: SnapshotCache) -> None:
    for batch_id in range(1, 30):
        stream.commit(batch_id, [batch_id])
        cached, table = snapshot_cache.load(stream.uri, {}), DeltaTable(stream.uri)
        assert cached is not None
        fresh = TableSnapshot.of(table, {})
        assert cached.version() == table.version()
        assert token_of(cached, "query-1") == token_of(fresh, "query-1") is not None
        assert committed_version(cached, "query-1") == committed_version(fresh, "query-1") == table.version()
        assert cached.table_uri == table.table_uri


def test_an_entry_has_the_content_that_the_library_writes(tmp_path: Path) -> None:
    """Except for the order of its lines and the name of the writer."""
    entries = []
    for name, options in (("own", {}), ("library", {"open_files": lambda _uri, _options: None})):
        stream = stream_in(tmp_path / name, snapshot_cache=lambda options=options: SnapshotCache(**options))
        stream.committer().plan(stream.schema, partition_by=["name"])
        manifest = stream.prepare(0, [1, 2])
        assert stream.committer().commit(manifest) == Committed(1)
        entries.append(pl.read_ndjson(Path(stream.uri, entry_name(1)).read_bytes()).to_dicts())
    own, others = (
        {name: action for line in entry for name, action in line.items() if isinstance(action, dict)}
        for entry in entries
    )
    assert own.keys() == others.keys() == {"commitInfo", "add", "txn"}
    assert own["txn"] == others["txn"]
    for name, value in others["add"].items():
        if name not in ("path", "modificationTime") and value is not None:
            assert own["add"][name] == value
    for name in ("operation", "operationParameters", "isBlindAppend", "userMetadata"):
        assert own["commitInfo"][name] == others["commitInfo"][name]


def test_readers_find_the_partition_value_that_was_written(tmp_path: Path) -> None:
    """JSON may encode a character beyond 16 bits as two escapes. Readers then decode another character."""
    value = '\U00020000 \U0001f600 é "\\'
    stream = stream_in(tmp_path, snapshot_cache=VIEWS["a process that goes on"]())
    target = stream.committer().plan(stream.schema, partition_by=["name"])
    file = replace(stream.write(target, [7]), partition_values=(("name", value),))
    stream.committer().commit(build_manifest(stream.batch(0), target.content([file], "append")))
    actions = pa.table(DeltaTable(stream.uri).get_add_actions())
    assert actions.column("partition").to_pylist() == [{"name": value}]
    assert stream.lake.rows("id, name") == [(7, value)]


def test_a_log_checkpoint_is_written_when_it_is_due(tmp_path: Path) -> None:
    stream = stream_in(tmp_path, snapshot_cache=VIEWS["a process that goes on"]())
    stream.committer().plan(stream.schema, properties={"delta.checkpointInterval": "3"})
    for batch_id in range(6):
        stream.commit(batch_id, [batch_id])
    written = sorted(
        path.name.partition(".")[0] for path in Path(stream.uri, LOG).glob("*.checkpoint.parquet")
    )
    assert [int(version) for version in written] == [2, 5]
    assert stream.ids() == list(range(6))
