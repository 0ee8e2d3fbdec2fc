"""Claims: a commit needs only the manifest, and a damaged manifest is reported as damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from ...committers.contract import Manifest, ManifestState
from ...committers.errors import ManifestCorruptError, TableNotSupportedError
from ...committers.store.sql import SqlManifestStore
from ...committers.store.tables import contents
from ...datasource.stored.batch_rows import HoldsRows
from .claims import Claims, check_rows
from .harness import DestinationHarness
from .query import Query, ids, payloads, shipped

DAMAGES = ["empty", "cut off", "another version", "another kind", "of other counts", "noise"]


class ManifestClaims(Claims):
    def test_a_manifest_is_read_from_the_store_as_it_was_written(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        manifest = query.prepare(store, query.batch(0), ids(1, 2), ids(), ids(3))
        stored = store.manifest(query.stream, 0)

        assert stored == manifest
        assert manifest.kind == harness.destination.kind == query.sink().kind
        assert (manifest.rows, manifest.files) == (3, len(harness.destination.files_of(manifest)))
        assert manifest.size_bytes > 0
        query.target().commit(shipped(manifest))
        check_rows(harness, 1, 2, 3)

    def test_a_manifest_depends_only_on_the_plan_and_the_payloads(
        self, query: Query, store: SqlManifestStore
    ) -> None:
        """It depends only on the plan and the payloads: a second commit process makes the same manifest."""
        plan = query.plan(store, query.batch(0))
        messages = query.write(plan, [ids(1), ids(2)])
        assert query.manifest(messages) == query.manifest(shipped(messages))
        assert len(payloads(messages)) == 2

    def test_a_manifest_that_is_damaged_in_the_store_is_reported(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.prepare(store, query.batch(0), ids(1))
        with store.engine.begin() as connection:
            content = connection.execute(sa.select(contents.c.content)).scalar_one()
            damaged = bytes([content[0] ^ 1]) + content[1:]
            connection.execute(sa.update(contents).values(content=damaged))
        for step in (lambda: query.recover(store), lambda: query.plan(store, query.batch(0))):
            with pytest.raises(ManifestCorruptError):
                step()

        check_rows(harness, early=[1])
        assert query.state(store, 0) is ManifestState.PREPARED

    def test_the_rows_of_a_batch_that_waits_can_be_read(self, query: Query, store: SqlManifestStore) -> None:
        """As `penstock show --rows` does, if the destination has them in files or tables that can be read."""
        manifest = query.prepare(store, query.batch(0), ids(1, 2), ids(), ids(3))
        stored = query.stored_table()
        if not isinstance(stored, HoldsRows):
            return
        try:
            found = list(stored.batch_rows(manifest, store))
        except TableNotSupportedError:
            return
        places = [(one.part, one.row + number) for one in found for number in range(one.rows.num_rows)]
        assert sorted(row_id for one in found for row_id in one.rows["id"].to_pylist()) == [1, 2, 3]
        assert len(set(places)) == 3

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_manifest_that_cannot_be_decoded_is_reported(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, damage: str
    ) -> None:
        """The checksum in the store is right, as after a change by hand or by a newer version."""
        damaged = _damaged(query.prepare(store, query.batch(0), ids(1)), damage)
        target = query.target()
        with pytest.raises(ManifestCorruptError):
            target.commit(damaged)
        with pytest.raises(ManifestCorruptError):
            target.missing(damaged)
        if damage != "another kind":  # which nobody asks this destination about
            with pytest.raises(ManifestCorruptError):
                list(harness.destination.files_of(damaged))

        check_rows(harness, early=[1])


def _damaged(manifest: Manifest, damage: str) -> Manifest:
    content = manifest.content
    return {
        "empty": replace(manifest, content=b""),
        "cut off": replace(manifest, content=content[:-1]),
        "another version": replace(manifest, version=manifest.version + 98),
        "another kind": replace(manifest, kind="punched cards"),
        "of other counts": replace(manifest, files=manifest.files + 1),
        "noise": replace(manifest, content=bytes((byte * 31 + 7) % 256 for byte in content)),
    }[damage]
