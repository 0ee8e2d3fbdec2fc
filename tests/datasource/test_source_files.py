"""A table whose folder the stream itself reads is refused, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock import ConfigurationError
from penstock.datasource.planning.plan import plan_stream_batch
from penstock.datasource.planning.source_files import check_apart_from_source
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.spark.registration import DATA_SOURCES

IDS = StructType([StructField("id", LongType())])
SINKS = {source.name().removeprefix("penstock."): source for source in DATA_SOURCES}
ICEBERG = {"warehouse": "{}", "table": "db.t"}
FANOUT = {
    "target.a": "penstock.delta",
    "target.a.path": "{}/a",
    "target.b": "penstock.delta",
    "target.b.path": "{}/b",
}


def checkpoint(folder: Path, *files: str) -> str:
    """As Spark leaves it for the sink of a batch that reads these files."""
    for name in ("offsets", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "11111111-1111-1111-1111-111111111111"}))
    (folder / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":0}')
    entries = [json.dumps({"path": file, "timestamp": 1, "batchId": 0}) for file in files]
    (folder / "sources" / "0" / "0").write_text("\n".join(["v1", *entries]))
    return str(folder)


def plan(kind: str, options: Mapping[str, str], root: Path, *files: str) -> None:
    given = {key: text.format(root) for key, text in options.items()}
    given["checkpointlocation"] = checkpoint(root / "checkpoint", *files)
    plan_stream_batch(SINKS[kind](given).query(), IDS, overwrite=False)


@pytest.mark.parametrize(
    ("kind", "options", "file"),
    [
        *((kind, {"path": "{}/s"}, "s/1.parquet") for kind in ("delta", "files", "hudi", "lance", "paimon")),
        ("delta", {"path": "{}/s"}, "s/of/the/day/1%201.parquet"),
        ("iceberg", ICEBERG, "db/t/data/1.parquet"),
        ("fanout", FANOUT, "b/1.parquet"),
    ],
)
def test_a_table_in_the_folder_of_its_source_is_refused(
    kind: str, options: Mapping[str, str], file: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="it would read again what it writes there"):
        plan(kind, options, tmp_path, "file:///data/0.parquet", f"file://{tmp_path}/{file}")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_link_to_the_folder_of_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with pytest.raises(ConfigurationError, match="Give another path"):
        plan("delta", {"path": "{}/link"}, tmp_path, f"file://{tmp_path}/s/1.parquet")


@pytest.mark.parametrize(
    ("kind", "options", "file"),
    [
        ("delta", {"path": "{}/s"}, "s2/1.parquet"),
        ("delta", {"path": "{}/s/t"}, "s/1.parquet"),
        ("iceberg", ICEBERG, "db/other/data/1.parquet"),
    ],
    ids=["a longer name", "below the source", "another table of the warehouse"],
)
def test_folders_apart_are_accepted(kind: str, options: Mapping[str, str], file: str, tmp_path: Path) -> None:
    plan(kind, options, tmp_path, f"file://{tmp_path}/{file}")


def test_buckets_are_compared_without_the_spelling_of_their_scheme() -> None:
    query = SINKS["delta"]({"path": "s3://bucket/t", "storage.AWS_REGION": "eu-west-1"}).query()
    check_apart_from_source(query.targets.values(), ["s3a://bucket/t2/1.parquet", "s3a://bucket/1.parquet"])
    with pytest.raises(ConfigurationError, match="option path"):
        check_apart_from_source(query.targets.values(), ["s3a://bucket/t/a=1/1.parquet"])


def test_a_row_log_is_no_source_of_its_query() -> None:
    redis = load(load(BUILT_IN["redis"]).data_source)
    options = {"url": "redis://h/0", "structure": "set", "key": "{id}", "delivery": "decoupled"}
    with pytest.raises(ConfigurationError, match="option rowLog"):
        check_apart_from_source(
            redis({**options, "rowlog": "/lake/s"}).query().targets.values(), ["file:///lake/s/1.parquet"]
        )
