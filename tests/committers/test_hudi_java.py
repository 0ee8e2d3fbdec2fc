"""Hudi's own Java library reads the tables that Penstock writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.hudi_reader import SeenTable, read_hudi
from servers.maven import MavenUnreachableError
from tests.support.hudi import HudiLake

from penstock.committers.hudi.publishing import Publishing
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query
from penstock.testing.faults import Crash

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])
WIDER = pa.schema([*ROWS, ("price", pa.decimal128(12, 2))])


def seen(lake: HudiLake) -> SeenTable:
    try:
        return read_hudi(lake.folder)
    except MavenUnreachableError as error:
        pytest.skip(str(error))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "day": ["2026/1", None, "b c"][: len(ids)]}, schema=ROWS)


@pytest.mark.parametrize("hive_style", ["true", "false"])
def test_hudi_sees_the_rows_of_completed_batches_only(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, hive_style: str
) -> None:
    """The driver dies when the files are in their places, and the instant is not completed."""
    lake = HudiLake(tmp_path)
    options = {"partitionBy": "day", "recordKey": "id", "hiveStylePartitions": hive_style}
    query = Query(lake, options=options, store=store)
    query.run(store, query.batch(0), rows(0, 1, 2))
    wider = Query(lake, options={**options, "schemaEvolution": "addColumns"}, store=store)
    more = rows(3, 4).append_column("price", pa.nulls(2, WIDER.field("price").type))
    wider.run(store, wider.batch(1), more)

    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Publishing, "complete", die)
        with pytest.raises(Crash):
            query.run(store, query.batch(2), rows(5, 6), run_id="r3")
    before = seen(lake)
    assert len(lake.visible_files()) == 7
    assert _ids(lake, before) == [0, 1, 2, 3, 4]
    assert (before.version, before.columns, len(before.pending)) == (6, WIDER.names, 1)
    assert set(lake.commits()) < before.completed

    query.recover(store)
    after = seen(lake)
    assert _ids(lake, after) == [0, 1, 2, 3, 4, 5, 6]
    assert not after.pending


def _ids(lake: HudiLake, table: SeenTable) -> list[int]:
    columns = [pq.read_table(lake.folder / path, columns=["id"], partitioning=None) for path in table.files]
    return sorted(row for column in columns for row in column["id"].to_pylist())
