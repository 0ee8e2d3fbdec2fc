"""Streams of tables that Hudi's own writer and Penstock write in turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.hudi_reader import archive_hudi, hudi_changes, hudi_jars, write_hudi
from servers.maven import MavenUnreachableError
from tests.support.hudi_table import HudiTable
from tests.support.table_streams import TableStream

from penstock import ConfigurationError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query

pytestmark = pytest.mark.campaign


@pytest.fixture(autouse=True)
def _reachable() -> None:
    try:
        hudi_jars()
    except MavenUnreachableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("version", [6, 8, 9])
def test_rows_of_each_commit_of_hudi_and_penstock_are_read_once(
    tmp_path: Path, store: SqlManifestStore, version: int
) -> None:
    """Hudi adds rows to small files; upserts of new keys only add rows."""
    lake = HudiTable(tmp_path, version)

    def write(*ids: int, upserts: bool = False, deletes: bool = False) -> None:
        write_hudi(lake.folder, version, *ids, upserts=upserts, deletes=deletes)

    write(1, 2)
    stream = TableStream(lake, columns="id")
    assert stream.ids() == [1, 2]
    write(3)
    assert len({path.partition("_")[0] for path in lake.visible_files()}) == 1  # one file group
    write(4, 5, upserts=True)
    assert stream.ids() == [3, 4, 5]
    write(1, 6, upserts=True)
    with pytest.raises(ConfigurationError, match=r"Instant .* changes rows"):
        stream.ids()
    write(2, deletes=True)
    write(7)
    stream.options["skipChangeCommits"] = "true"
    stream.start()
    assert stream.ids() == [7]
    deletion = lake.instants()[-2]
    later = TableStream(lake, columns="id", startingVersion=deletion, ignoreDeletes="true")
    assert later.ids() == [7]
    options = {"writeMode": "upsert", "keys": "id"}
    if version == 6:
        return
    query = Query(lake, options=options, store=store)
    rows = pa.table({"id": [8], "day": ["x"]}, schema=pa.schema([("id", pa.int64()), ("day", pa.string())]))
    query.run(store, query.batch(0), rows)
    assert stream.ids() == [8]


@pytest.mark.parametrize("version", [6, 9])
def test_changes_are_those_of_hudis_own_change_data_capture(tmp_path: Path, version: int) -> None:
    """Which Hudi's writer records while it writes. Penstock compares the files instead."""
    lake = HudiTable(tmp_path, version)

    def write(*ids: int, upserts: bool = False, deletes: bool = False) -> None:
        write_hudi(lake.folder, version, *ids, upserts=upserts, deletes=deletes, records_changes=True)

    write(*range(20))
    stream = TableStream(lake, changes="true", startingVersion=lake.instants()[0])
    write(20, 21, upserts=True)  # Hudi does not record those of its `insert` into a small file
    write(3, 5, 22, upserts=True)
    write(4, 20, deletes=True)
    write(4, 5, 23, upserts=True)
    names = {"i": ["insert"], "d": ["delete"], "u": ["update_postimage", "update_preimage"]}
    expected = Counter[tuple[str, str, str]]()
    for instant, operation, rest in hudi_changes(lake.folder):
        if operation == "file":
            keys = pq.read_table(lake.folder / rest, partitioning=None)["_hoodie_record_key"].to_pylist()
            expected.update((instant, "insert", key) for key in keys)
        else:
            expected.update((instant, kind, rest) for kind in names[operation])
    assert set(expected.values()) == {1}
    assert {instant for instant, _, _ in expected} == set(lake.instants())
    ends = {(one if version == 6 else lake.end_of(one)): one for one in lake.instants()}
    found = [
        (ends[str(row["_commit_version"])], row["_change_type"], row["_hoodie_record_key"])
        for row in stream.next() or ()
    ]
    assert Counter(found) == expected
    assert len([kind for _, kind, _ in found if kind == "update_preimage"]) == 3


@pytest.mark.parametrize("version", [6, 9])
def test_a_stream_goes_on_after_hudi_has_cleaned_and_archived(tmp_path: Path, version: int) -> None:
    """If it has read what was archived."""
    lake = HudiTable(tmp_path, version)
    write_hudi(lake.folder, version, 1)
    ahead, behind = TableStream(lake, columns="id"), TableStream(lake, columns="id")
    assert ahead.ids() == behind.ids() == [1]
    for number in (2, 3, 4):
        write_hudi(lake.folder, version, number)
    assert ahead.ids() == [2, 3, 4]
    files = len(lake.visible_files())
    archive_hudi(lake.folder, 2, cleans=True)
    assert len(lake.visible_files()) < files
    write_hudi(lake.folder, version, 5)
    for _ in range(2):
        ahead.start()
    assert ahead.ids() == [5]
    behind.start()
    with pytest.raises(ConfigurationError, match=r"no longer has the instant .* was archived"):
        behind.ids()
    assert TableStream(lake, columns="id").ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("version", [6, 9])
def test_files_that_hudis_cleaner_has_deleted_are_not_missed(tmp_path: Path, version: int) -> None:
    """In its own metadata."""
    lake = HudiTable(tmp_path, version)
    write_hudi(lake.folder, version, 1)
    stream = TableStream(lake, columns="id", maxFilesPerTrigger="1")
    for number in (2, 3):
        write_hudi(lake.folder, version, number)
    start = {**stream.plan.end_of_batch(None, stream.parsed.limits).to_dict()}
    (first,) = [one for one in lake.instants() if one == str(start["version"])]
    assert first == lake.instants()[-1]
    stream.ends.append(start)
    for number in (4, 5):
        write_hudi(lake.folder, version, number)
    archive_hudi(lake.folder, 5, cleans=True)
    stream.start()
    with pytest.raises(ConfigurationError, match="its cleaner has deleted 1 of them"):
        stream.read(0)
