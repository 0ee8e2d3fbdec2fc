"""A transaction that copies no metadata has the same result as that of pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import LongType
from tests.support.lakes import IcebergLake
from tests.support.query import Batches, Query

from penstock.committers.iceberg.library.snapshots import UncopiedTransaction


@pytest.fixture
def table(tmp_path: Path) -> Table:
    lake = IcebergLake(tmp_path / "warehouse", "lake.t")
    batches = Batches(Query(lake, "q0", {"store": f"sqlite:///{tmp_path}/penstock.db"}))
    for number in range(3):
        batches.run([number])
    return lake.load()


def changed(table: Table) -> UncopiedTransaction:
    """A transaction with a column, a snapshot and properties, as a commit of a batch has."""
    transaction = UncopiedTransaction(table)
    with transaction.update_schema() as update:
        update.add_column("more", LongType())
    transaction.update_snapshot().fast_append().commit()
    transaction.set_properties({"penstock.q0": "{}", "other": "1"})
    transaction.remove_properties("other")
    return transaction


def without_time(metadata: TableMetadata) -> dict[str, Any]:
    """All of the metadata except the time, which pyiceberg sets on every call."""
    return metadata.model_dump(exclude={"last_updated_ms"})


def test_the_metadata_is_what_the_library_makes_of_the_same_updates(table: Table) -> None:
    transaction = changed(table)

    assert len(transaction._updates) > 3
    assert without_time(transaction.table_metadata) == without_time(
        update_table_metadata(table.metadata, transaction._updates)
    )


def test_the_metadata_of_the_start_does_not_change(table: Table) -> None:
    """The next attempt, and the requirements of this one, are about the table as it was loaded."""
    before = table.metadata.model_dump_json()

    transaction = changed(table)

    assert transaction.table_metadata.current_snapshot_id != table.metadata.current_snapshot_id
    assert table.metadata.model_dump_json() == before


def test_each_update_is_visible_at_once(table: Table) -> None:
    transaction = UncopiedTransaction(table)

    transaction.set_properties({"a": "1"})
    assert transaction.table_metadata.properties["a"] == "1"
    transaction.set_properties({"a": "2"})
    assert transaction.table_metadata.properties["a"] == "2"
