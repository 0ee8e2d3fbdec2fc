"""Tables of Delta's own engine are written or refused by name. tests/fixtures/make_tables.py makes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.streams import DeltaStream, edit_log_entry

from penstock.committers.contract import Committed, Mode
from penstock.committers.delta.checks import ALLOWED_FEATURES, check_supported
from penstock.committers.errors import TableNotSupportedError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "delta"
ID = pa.schema([("id", pa.int64())])

WRITABLE = {
    "append_only": [1, 2, 3],
    "change_data_feed": [1, 2, 3],
    "deletion_vectors": [1, 2, 3, 4, 6, 7, 8, 9, 10],
    "deletion_vectors_unused": [1, 2, 3],
    "log_checkpoint": [1, 2, 3, 4, 5],
    "not_null": [1, 2, 3],
    "partitioned": [1, 2],
    "plain": [1, 2, 3],
    "restored": [1, 2, 3],
    "timestamp_ntz": [1],
    "type_widening": [1, 2, 3],
    "v2_checkpoint": [1, 2, 3, 4, 5],
}
"""The ids that each has."""

NOT_OVERWRITTEN = {
    "append_only": r"append-only table",
    "type_widening": "'typeWidening'",
    "variant": "'variantType'",
}
"""What of them does not allow it."""

REFUSED = {
    "check_constraint": r"CHECK constraint 'positive' \(id > 0\)",
    "clustering": "'clustering'",
    "column_default": r"column default 'name' \('x'\)",
    "column_mapping_id": r"column mapping \(delta\.columnMapping\.mode = id\)",
    "column_mapping_name": r"column mapping \(delta\.columnMapping\.mode = name\)",
    "features_unused": "'identityColumns'",
    "generated_column": r"generated column 'twice' \(id \* 2\)",
    "iceberg_compat": "'icebergCompatV2'",
    "identity_column": "identity column 'number'",
    "in_commit_timestamp": "'inCommitTimestamp'",
    "invariant": "invariant 'id'",
    "row_tracking": "'rowTracking'",
    "vacuum_protocol_check": "'vacuumProtocolCheck'",
}


OF_READERS = {"deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"}


@pytest.fixture
def stream(tmp_path: Path) -> DeltaStream:
    return DeltaStream(str(tmp_path / "table"), schema=ID)


def copy(name: str, stream: DeltaStream) -> None:
    shutil.copytree(FIXTURES / name, stream.uri)


def test_every_fixture_is_tested() -> None:
    assert {path.name for path in FIXTURES.iterdir()} == WRITABLE.keys() | REFUSED.keys() | {
        "all_types",
        "variant",
    }


@pytest.mark.parametrize("name", WRITABLE)
def test_a_supported_table_is_written(name: str, stream: DeltaStream) -> None:
    copy(name, stream)
    assert stream.ids() == WRITABLE[name]
    for batch_id in range(4):
        assert isinstance(stream.commit(batch_id, [1000 + batch_id]), Committed)
    assert stream.ids() == [*WRITABLE[name], 1000, 1001, 1002, 1003]


@pytest.mark.parametrize("name", sorted(WRITABLE.keys() - NOT_OVERWRITTEN.keys()))
def test_a_supported_table_is_overwritten(name: str, stream: DeltaStream) -> None:
    """Of a file with a deletion vector the vector must be removed too, or other readers see the old rows."""
    copy(name, stream)
    stream.commit(0, [1000], mode="overwrite")
    assert stream.ids() == [1000]
    if name != "v2_checkpoint":  # polars cannot read these
        assert pl.read_delta(stream.uri)["id"].to_list() == [1000]


@pytest.mark.parametrize("name", NOT_OVERWRITTEN)
def test_a_table_that_can_only_grow_is_not_overwritten(name: str, stream: DeltaStream) -> None:
    copy(name, stream)
    with pytest.raises(TableNotSupportedError, match=NOT_OVERWRITTEN[name]):
        stream.committer().plan(ID, mode="overwrite")


def test_an_overwrite_removes_deletion_vectors_with_their_files(stream: DeltaStream) -> None:
    copy("deletion_vectors", stream)
    stream.commit(0, [1000], mode="overwrite")
    log = (Path(stream.uri) / "_delta_log" / f"{3:020}.json").read_text().splitlines()
    removed = [json.loads(line)["remove"] for line in log if "remove" in json.loads(line)]
    assert [remove["deletionVector"]["cardinality"] for remove in removed] == [1]


@pytest.mark.parametrize("name", ["log_checkpoint", "v2_checkpoint"])
def test_log_checkpoints_follow_the_interval_of_the_table(name: str, stream: DeltaStream) -> None:
    copy(name, stream)
    log = Path(stream.uri) / "_delta_log"
    for batch_id in range(3):
        stream.commit(batch_id, [1000 + batch_id])
    assert [file.name for file in log.glob("*8.checkpoint*")] == [f"{8:020}.checkpoint.parquet"]
    for file in [*log.glob("*3.checkpoint*"), *(log / f"{version:020}.json" for version in range(8))]:
        file.unlink()
    stream.commit(3, [1003])
    assert stream.ids() == [*WRITABLE[name], 1000, 1001, 1002, 1003]
    assert stream.last_batch() == 3


def test_all_types_of_another_engine_are_planned_for(stream: DeltaStream) -> None:
    copy("all_types", stream)
    schema = pa.schema(DeltaTable(stream.uri).schema().to_arrow())
    target = stream.committer().plan(schema)
    assert target.schema.equals(schema)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_feature_is_refused(name: str, mode: Mode, stream: DeltaStream) -> None:
    copy(name, stream)
    with pytest.raises(TableNotSupportedError, match=rf"{REFUSED[name]}[^\n]*: [^\n]* Way out: "):
        stream.committer().plan(ID, mode=mode)


def with_protocol(stream: DeltaStream, *features: str) -> DeltaTable:
    """The plain fixture with these writer features in its protocol."""
    copy("plain", stream)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    edit_log_entry(stream, 0, lambda action: "protocol" in action and action.update(protocol=protocol))
    return DeltaTable(stream.uri)


def test_an_unknown_feature_is_refused_by_name(stream: DeltaStream) -> None:
    table = with_protocol(stream, "appendOnly", "teleportation")
    with pytest.raises(TableNotSupportedError, match="'teleportation'"):
        check_supported(table)


def test_features_that_are_listed_but_unused_are_allowed(stream: DeltaStream) -> None:
    unused = sorted(ALLOWED_FEATURES - {*OF_READERS, "columnMapping"})
    unused = [feature for feature in unused if not feature.startswith("variant")]
    check_supported(with_protocol(stream, *unused))
    assert isinstance(stream.commit(0, [1000]), Committed)
    assert stream.ids() == [1, 2, 3, 1000]


@pytest.mark.parametrize("name", ["delta.enableRowTracking", "delta.enableInCommitTimestamps"])
def test_a_property_of_an_unsupported_feature_is_refused(name: str, stream: DeltaStream) -> None:
    DeltaTable.create(stream.uri, ID, configuration={name: "true"}, raise_if_key_not_exists=False)
    with pytest.raises(TableNotSupportedError, match=name):
        stream.committer().plan(ID)
