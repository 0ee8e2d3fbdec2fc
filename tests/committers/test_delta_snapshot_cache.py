"""What a process keeps of a Delta table between batches, and when it no longer believes it."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from servers.s3 import s3_server
from tests.support.readers import delta_rows
from tests.support.streams import DeltaStream, clean_up_log, stream_in

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
from penstock.testing.faults import at_point


@dataclass
class Watched:
    """The log's files on the local disk, and what is asked of them."""

    files: LocalLogFiles
    asked: Counter[str] = field(default_factory=Counter)
    fails: Callable[[str, int], bool] = lambda _what, _version: False

    def read(self, version: int) -> LogFile | None:
        self._ask("read", version)
        return self.files.read(version)

    def identity(self, version: int) -> str | None:
        self._ask("identity", version)
        return self.files.identity(version)

    def put(self, version: int, content: bytes) -> str:
        self._ask("put", version)
        return self.files.put(version, content)

    def _ask(self, what: str, version: int) -> None:
        self.asked[what] += 1
        if self.fails(what, version):
            raise OSError("the storage does not answer")


@pytest.fixture
def log(tmp_path: Path) -> Watched:
    return Watched(LocalLogFiles(str(tmp_path / "table")))


@pytest.fixture
def snapshot_cache(log: Watched) -> SnapshotCache:
    return SnapshotCache(open_files=lambda _uri, _options: log)


@pytest.fixture
def stream(tmp_path: Path, snapshot_cache: SnapshotCache) -> DeltaStream:
    """With batch 0 in version 1, all by one process."""
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    assert stream.commit(0, [0]) == Committed(1)
    return stream


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that the library loads the table for a view."""
    loads: list[str] = []

    class Counted(DeltaTable):
        def __init__(self, table_uri: str, *args: object, **options: object) -> None:
            loads.append(table_uri)
            super().__init__(table_uri, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "DeltaTable", Counted)
    return loads


def ids(stream: DeltaStream) -> list[object]:
    return [row[0] for row in delta_rows(Path(stream.uri), "id")]


def append_as_another(stream: DeltaStream, times: int = 1) -> None:
    for _ in range(times):
        write_deltalake(stream.uri, pa.table({"id": [-1], "name": ["foreign"]}), mode="append")


# What a batch costs -----------------------------------------------------------------------------------


def test_a_batch_reads_and_writes_a_few_files_of_the_log_and_loads_nothing(
    stream: DeltaStream, log: Watched, loads: list[str]
) -> None:
    log.asked.clear()
    for batch_id in range(1, 4):
        stream.commit(batch_id, [batch_id])
    assert loads == []
    # To plan, to commit, and after the commit; nothing follows, each time.
    assert log.asked == {"read": 2 * 3, "identity": 3 * 3, "put": 3}
    assert ids(stream) == [0, 1, 2, 3]


def test_a_batch_reads_what_the_last_one_of_another_process_has_written(
    stream: DeltaStream, tmp_path: Path, log: Watched, loads: list[str]
) -> None:
    """Spark plans in one process and commits in another."""
    snapshot_cache = SnapshotCache(open_files=lambda _uri, _options: log)
    committing = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    committing.committer().commit(stream.prepare(1, [1]))
    loads.clear()
    log.asked.clear()
    for batch_id in range(2, 5):
        committing.committer().commit(stream.prepare(batch_id, [batch_id]))
    assert loads == []
    assert log.asked == {"read": 3 * 3, "identity": 4 * 3, "put": 3}
    assert ids(stream) == [0, 1, 2, 3, 4]


def _of_one_process() -> Callable[[], SnapshotCache]:
    snapshot_cache = SnapshotCache()
    return lambda: snapshot_cache


def test_each_part_of_the_token_is_asked_for_once(
    stream: DeltaStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each, the library reads the log since its last checkpoint."""
    asked: Counter[str] = Counter()
    ask = DeltaTable.transaction_version

    def counting(table: DeltaTable, app_id: str) -> int | None:
        asked[app_id] += 1
        return ask(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counting)
    new = stream_in(Path(stream.uri).parent, snapshot_cache=_of_one_process())
    for batch_id in range(1, 4):
        new.committer().token("query-1")
        new.commit(batch_id, [batch_id])
    assert len(asked) == 3
    assert set(asked.values()) == {1}


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


def test_a_batch_on_s3_loads_nothing_either(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = DeltaStream(f"s3://lake/{uuid.uuid4()}", storage_options=s3, snapshot_cache=_of_one_process())
    stream.commit(0, [0])

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the library loads the table")

    with monkeypatch.context() as without_library:
        without_library.setattr(library, "DeltaTable", forbidden)
        assert stream.commit(1, [1]) == Committed(2)
        assert stream.commit(2, [2]) == Committed(3)
    assert sorted(pl.read_delta(stream.uri, storage_options=s3)["id"]) == [0, 1, 2]


# What others do ---------------------------------------------------------------------------------------


def test_commits_of_others_are_read_one_by_one(stream: DeltaStream, loads: list[str]) -> None:
    append_as_another(stream, ENTRIES_MAX)
    assert stream.commit(1, [1]) == Committed(ENTRIES_MAX + 2)
    assert loads == []


def test_more_commits_of_others_are_loaded(stream: DeltaStream, loads: list[str]) -> None:
    append_as_another(stream, ENTRIES_MAX + 1)
    assert stream.commit(1, [1]) == Committed(ENTRIES_MAX + 3)
    assert loads != []


def test_columns_that_others_add_are_seen(stream: DeltaStream) -> None:
    DeltaTable(stream.uri).alter.add_columns(
        [Field.from_json('{"name":"extra","type":"long","nullable":true,"metadata":{}}')]
    )
    assert stream.commit(1, [1]) == Committed(3)
    assert stream.committer().plan(stream.schema).schema.names == ["id", "name", "extra"]


def test_properties_that_others_set_are_seen(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [1])
    DeltaTable(stream.uri).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(Exception, match="positive"):
        stream.committer().commit(manifest)


def test_a_twin_of_another_process_is_seen(stream: DeltaStream, tmp_path: Path) -> None:
    manifest = stream.prepare(1, [1])
    twin = stream_in(tmp_path, snapshot_cache=_of_one_process())
    with at_point("commit.start", lambda: twin.committer().commit(manifest)):
        assert not isinstance(stream.committer().commit(manifest), Conflict)
    assert ids(stream) == [0, 1]


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_a_table_created_anew_is_not_taken_for_the_old_one(stream: DeltaStream, versions: int) -> None:
    """Whether its log is as long as the old one's, shorter or longer."""
    manifest = stream.prepare(1, [1])
    shutil.rmtree(stream.uri)
    DeltaTable.create(stream.uri, pa.schema(stream.schema))
    append_as_another(stream, versions - 1)
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        stream.committer().commit(manifest)
    assert DeltaTable(stream.uri).version() == versions - 1


def test_a_dropped_table_is_noticed(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [1])
    shutil.rmtree(stream.uri)
    with pytest.raises(TableChangedError, match=r"Delta table .* no longer exists"):
        stream.committer().commit(manifest)
    assert not Path(stream.uri).exists()


def test_a_log_that_was_cleaned_up_behind_the_view_is_loaded(stream: DeltaStream) -> None:
    """The next version's place is free, and far behind the newest."""
    append_as_another(stream, 3)
    clean_up_log(stream)
    assert stream.commit(1, [1]) == Committed(5)
    assert ids(stream) == [-1, -1, -1, 0, 1]


def test_an_entry_put_into_a_log_that_was_cleaned_up_meanwhile_is_no_commit(
    stream: DeltaStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = stream.prepare(1, [1])

    def others_commit_and_clean_up() -> None:
        append_as_another(stream, 3)
        clean_up_log(stream)

    with at_point("commit.start", others_commit_and_clean_up):
        with pytest.raises(RetryableError, match="was not committed"):
            stream.committer().commit(manifest)
    assert stream.committer().commit(manifest) == Committed(5)
    assert ids(stream) == [-1, -1, -1, 0, 1]


# What is no longer believed ---------------------------------------------------------------------------


@pytest.mark.parametrize("passed_s", [KEPT_S, -1.0])
def test_a_view_of_long_ago_is_loaded(tmp_path: Path, loads: list[str], passed_s: float) -> None:
    """Or of another time, by a clock that was set back."""
    now_s = [1000.0]
    snapshot_cache = SnapshotCache(lambda: now_s[0])
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    stream.commit(0, [0])
    loads.clear()
    stream.commit(1, [1])
    assert loads == []
    now_s[0] += passed_s
    stream.commit(2, [2])
    assert loads != []


@pytest.mark.parametrize("content", [b"\x00", b'{"metaData": broken', b'{"txn":{"appId":"x"}}'])
def test_an_entry_that_is_none_is_left_to_the_library(stream: DeltaStream, content: bytes) -> None:
    manifest = stream.prepare(1, [1])
    Path(stream.uri, entry_name(2)).write_bytes(content)
    with pytest.raises(RetryableError):
        stream.committer().commit(manifest)
    Path(stream.uri, entry_name(2)).unlink()
    assert stream.committer().commit(manifest) == Committed(2)


@pytest.mark.parametrize("what", ["read", "identity"])
def test_a_log_that_cannot_be_read_by_files_is_left_to_the_library(
    stream: DeltaStream, log: Watched, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log.fails = lambda asked, _version: asked == what
    with caplog.at_level(logging.INFO, logger="penstock"):
        for batch_id in range(1, 4):
            assert stream.commit(batch_id, [batch_id]) == Committed(batch_id + 1)
    assert ids(stream) == [0, 1, 2, 3]
    said = [
        record for record in caplog.records if "Commits go through the Delta library" in record.getMessage()
    ]
    assert len(said) == (what == "identity")


def test_after_one_failed_request_the_log_is_read_by_files_again(
    tmp_path: Path, log: Watched, loads: list[str]
) -> None:
    now_s = [1000.0]
    snapshot_cache = SnapshotCache(lambda: now_s[0], open_files=lambda _uri, _options: log)
    stream = stream_in(tmp_path, snapshot_cache=lambda: snapshot_cache)
    log.fails = lambda asked, _version: asked == "identity"
    stream.commit(0, [0])
    log.fails = lambda _asked, _version: False
    stream.commit(1, [1])
    assert log.asked["put"] == 0

    now_s[0] += LIBRARY_ONLY_S
    stream.commit(2, [2])
    loads.clear()
    stream.commit(3, [3])
    assert loads == []
    assert ids(stream) == [0, 1, 2, 3]


def test_a_commit_whose_end_is_unknown_is_looked_for_in_the_table(stream: DeltaStream, log: Watched) -> None:
    manifest = stream.prepare(1, [1])
    put = log.files.put

    def landed_and_failed(version: int, content: bytes) -> str:
        put(version, content)
        raise OSError("fsync: Input/output error")

    log.files.put = landed_and_failed  # type: ignore[method-assign]
    assert stream.committer().commit(manifest) == Committed(2)
    assert ids(stream) == [0, 1]


def test_a_commit_that_fails_on_the_local_disk_did_not_land(stream: DeltaStream, log: Watched) -> None:
    manifest = stream.prepare(1, [1])
    log.fails = lambda asked, _version: asked == "put"
    with pytest.raises(RetryableError, match=r"the storage does not answer. The batch was not committed"):
        stream.committer().commit(manifest)
    log.fails = lambda _asked, _version: False
    assert stream.committer().commit(manifest) == Committed(2)


# A view and the library -------------------------------------------------------------------------------


def test_a_view_says_what_the_library_says(stream: DeltaStream, snapshot_cache: SnapshotCache) -> None:
    for batch_id in range(1, 30):
        stream.commit(batch_id, [batch_id])
        view, table = snapshot_cache.load(stream.uri, {}), DeltaTable(stream.uri)
        assert view is not None
        fresh = TableSnapshot.of(table, {})
        assert view.version() == table.version()
        assert token_of(view, "query-1") == token_of(fresh, "query-1") is not None
        assert committed_version(view, "query-1") == committed_version(fresh, "query-1") == table.version()
        assert view.table_uri == table.table_uri


def test_an_entry_says_what_the_library_writes(tmp_path: Path) -> None:
    """But for the order of its lines, and who wrote it."""
    entries = []
    for name, options in (("own", {}), ("library", {"open_files": lambda _uri, _options: None})):
        stream = stream_in(tmp_path / name, snapshot_cache=lambda options=options: SnapshotCache(**options))
        stream.committer().plan(stream.schema, partition_by=["name"])
        manifest = stream.prepare(0, [1, 2])
        assert stream.committer().commit(manifest) == Committed(1)
        entries.append(pl.read_ndjson(Path(stream.uri, entry_name(1)).read_bytes()).to_dicts())
    own, others = (_actions(entry) for entry in entries)
    assert own.keys() == others.keys() == {"commitInfo", "add", "txn"}
    assert own["txn"] == others["txn"]
    for name, value in others["add"][0].items():
        if name not in ("path", "modificationTime") and value is not None:
            assert own["add"][0][name] == value
    for name in ("operation", "operationParameters", "isBlindAppend", "userMetadata"):
        assert own["commitInfo"][0][name] == others["commitInfo"][0][name]


def test_readers_find_the_partition_value_that_was_written(tmp_path: Path) -> None:
    """JSON may spell a character beyond 16 bits as two halves; readers then make another one of it."""
    value = '\U00020000 \U0001f600 é "\\'
    stream = stream_in(tmp_path, snapshot_cache=_of_one_process())
    target = stream.committer().plan(stream.schema, partition_by=["name"])
    file = replace(stream.write(target, [7]), partition_values=(("name", value),))
    stream.committer().commit(build_manifest(stream.batch(0), target.content([file], "append")))
    actions = pa.table(DeltaTable(stream.uri).get_add_actions())
    assert actions.column("partition").to_pylist() == [{"name": value}]
    assert delta_rows(Path(stream.uri), "id, name") == [(7, value)]


def _actions(entry: list[dict[str, object]]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for line in entry:
        for name, action in line.items():
            if isinstance(action, dict):
                found.setdefault(name, []).append(action)
    return found


def test_a_log_checkpoint_is_written_when_it_is_due(tmp_path: Path) -> None:
    stream = stream_in(tmp_path, snapshot_cache=_of_one_process())
    stream.committer().plan(stream.schema, properties={"delta.checkpointInterval": "3"})
    for batch_id in range(6):
        stream.commit(batch_id, [batch_id])
    written = sorted(
        path.name.partition(".")[0] for path in Path(stream.uri, LOG).glob("*.checkpoint.parquet")
    )
    assert [int(version) for version in written] == [2, 5]
    assert ids(stream) == list(range(6))
