"""No maintenance of a table deletes or replaces files that the other one still needs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction
from tests.support.cli import Ended
from tests.support.lake_pairs import LakePair, age_files, run

from penstock.committers.contract import ManifestState
from penstock.committers.delta import maintenance
from penstock.committers.delta.maintenance import vacuum
from penstock.committers.file_tables.manifest import decode
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.stored.table_access import TableAccess
from penstock.operating import admin
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

PREPARED = ManifestState.PREPARED
UTC = timezone.utc


def delivered(pair: LakePair, batches: int = 3) -> Query:
    query = pair.query()
    for batch_id in range(batches):
        run(pair, query, batch_id)
    assert pair.deliver().code == 0
    return query


def remove_all(pair: LakePair) -> None:
    """Remove all files from the Delta table, long ago."""
    table = DeltaTable(str(pair.delta.path))
    removed_at = int((datetime.now(UTC) - timedelta(days=30)).timestamp() * 1000)
    paths = pa.table(table.get_add_actions()).column("path").to_pylist()
    actions = [RemoveAction(path, False, removed_at, 1, {}) for path in paths]
    table.create_write_transaction([*actions], mode="append", schema=table.schema())


def gc(pair: LakePair, *arguments: str) -> Ended:
    return Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete", *arguments)


def test_a_vacuum_keeps_files_that_the_iceberg_table_needs(pair: LakePair) -> None:
    delivered(pair)
    remove_all(pair)
    assert vacuum(str(pair.delta.path), {}, datetime.now(UTC) + timedelta(days=60), tuple) == 0
    assert pair.iceberg.ids() == list(range(6))
    with mock.patch.object(maintenance, "shared_with", return_value=None):
        assert vacuum(str(pair.delta.path), {}, datetime.now(UTC) + timedelta(days=60), tuple) == 6


@pytest.mark.parametrize("target", ["delta", "iceberg"])
def test_small_files_of_one_table_are_not_rewritten(pair: LakePair, target: str) -> None:
    query = pair.query()
    run(pair, query, 0)
    (manifest,) = pair.store.manifests(pair.stream(target), PREPARED)
    sink = getattr(pair, target).sink(compactWith="local")
    assert sink.open_table().rewrite_config(decode(manifest)) is None


def test_expired_snapshots_keep_their_files(pair: LakePair) -> None:
    """Also if the operator names the folder as one of the Iceberg table's own."""
    query = pair.query()
    for batch_id in range(3):
        run(pair, query, batch_id, ids(batch_id), overwrite=True)
        assert pair.deliver().code == 0
    own = {"catalog.penstock.data-path": str(pair.delta.path), "keepSnapshots": "1", "snapshotGrace": "0s"}
    catalog = {f"catalog.{key}": value for key, value in pair.iceberg.sql_catalog.properties.items()}
    given = {"table": pair.iceberg.table, "catalog": "penstock", "catalog.type": "sql", **catalog, **own}
    iceberg = IcebergSink(IcebergOptions.parse({**given, "expireSnapshots": "true"}))
    for _ in range(2):
        iceberg.maintain(pair.store, query.batch(0))
    assert pair.iceberg.versions() == 1
    assert len(pair.files()) == 3, "the Delta table needs them to travel in time"


def test_clean_up_deletes_only_what_neither_table_needs(pair: LakePair) -> None:
    query = delivered(pair)
    orphan = pair.delta.folder / sorted(pair.files())[0].replace("-00000-", "-00007-", 1)
    orphan.write_bytes(b"of a task that died")
    run(pair, query, 3)
    assert pair.deliver("delta").code == 0
    age_files(pair)
    listed = Ended("gc", "--store", pair.store_url, "--older-than", "1h", columns=None)
    assert listed.out.count(orphan.name) == 1, "only with the Delta table, where it can be deleted"
    ended = gc(pair)
    assert ended.code == 0, ended.err
    assert not orphan.exists()
    assert pair.deliver().code == 0
    assert pair.ids() == [list(range(8))] * 2


def test_clean_up_keeps_what_only_the_iceberg_table_names(pair: LakePair) -> None:
    """Its log has forgotten the files, and so has the store."""
    delivered(pair)
    age_files(pair)
    with (
        mock.patch("penstock.committers.delta.cleanup.DeltaCleanableTable.names", return_value=()),
        mock.patch("penstock.committers.cleaning.cleanup.Cleanup._names", return_value=set()),
    ):
        assert gc(pair).code == 0
    assert len(pair.files()) == 6
    assert pair.iceberg.ids() == list(range(6))


def test_clean_up_waits_for_the_slower_table(pair: LakePair) -> None:
    """Its tasks may be writing a batch again that the other table has."""
    query = pair.query()
    run(pair, query, 0)
    assert pair.deliver("delta").code == 0
    assert pair.store.deliveries.abort_pending(pair.stream("iceberg"), -1, "me", "a mistake")
    messages = query.write(query.plan(pair.store, query.batch(0)), [ids(0), ids(1)], "r2")
    age_files(pair)
    assert gc(pair).code == 0
    query.commit(pair.store, messages)
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


def test_an_aborted_batch_of_one_table_keeps_its_files_for_the_other(pair: LakePair) -> None:
    run(pair, pair.query(), 0)
    streams = {stream.kind: stream for stream in pair.store.streams()}
    paths = sorted(pair.files())
    for kind in ("delta", "iceberg"):
        admin._delete_unnamed(pair.store, streams[kind], TableAccess({}, {}), paths)
        assert sorted(pair.files()) == paths, kind


def test_clean_up_without_the_other_table_deletes_nothing(pair: LakePair) -> None:
    delivered(pair)
    age_files(pair)
    pair.iceberg.forget()
    ended = gc(pair)
    assert ended.code == 3
    assert "does not exist" in ended.out + ended.err
    assert len(pair.files()) == 6
