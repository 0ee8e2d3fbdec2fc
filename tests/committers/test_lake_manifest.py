"""The durable form of a lake table's manifest."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.committers.cleaning.deletion import is_relative
from penstock.committers.contract import Batch, DataFile, StreamKey
from penstock.committers.errors import ManifestCorruptError, PenstockError
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest, decode

BATCH = Batch(StreamKey("query-1", "/lake/t"), 7, "ab" * 32)

texts = st.text(st.characters(exclude_categories=["Cs"]))
files = st.builds(
    DataFile,
    path=texts.filter(is_relative),
    size_bytes=st.integers(0, 2**62),
    rows=st.integers(0, 2**62),
    partition_values=st.tuples(
        st.tuples(st.just("day"), st.none() | texts), st.tuples(st.just("a b"), st.none() | texts)
    ),
    statistics=texts,
)


def content_of(*files: DataFile, partition_by: tuple[str, ...] = ()) -> LakeManifest:
    return LakeManifest(
        kind="delta",
        mode="append",
        table_id="table-id",
        table_version=3,
        schema_json='{"fields": []}',
        new_columns=("new",),
        partition_by=partition_by,
        files=files,
        location="file:///lake/t/data",
        partition_spec_id=2,
    )


@settings(deadline=None)
@given(st.lists(files, unique_by=lambda file: file.path), st.sampled_from(["append", "overwrite"]))
def test_a_manifest_decodes_as_encoded(some: list[DataFile], mode: str) -> None:
    content = dataclasses.replace(
        content_of(*some, partition_by=("day", "a b")),
        mode=mode,  # type: ignore[arg-type]
    )
    assert decode(build_manifest(BATCH, content)) == content


def test_counts_are_those_of_the_files() -> None:
    manifest = build_manifest(BATCH, content_of(DataFile("a", 10, 1), DataFile("b", 5, 2)))
    assert (manifest.files, manifest.rows, manifest.size_bytes, manifest.is_empty) == (2, 3, 15, False)


def test_an_append_of_nothing_is_empty_but_an_overwrite_with_nothing_is_not() -> None:
    assert build_manifest(BATCH, content_of()).is_empty
    assert not build_manifest(BATCH, dataclasses.replace(content_of(), mode="overwrite")).is_empty


def test_a_file_named_twice_is_refused() -> None:
    with pytest.raises(PenstockError, match="'a'"):
        build_manifest(BATCH, content_of(DataFile("a", 10, 1), DataFile("b", 5, 2), DataFile("a", 10, 1)))


def test_files_of_other_partition_columns_are_refused() -> None:
    with pytest.raises(PenstockError, match="partition"):
        build_manifest(BATCH, content_of(DataFile("a", 10, 1, (("day", "1"),)), partition_by=("hour",)))


@settings(deadline=None)
@given(st.data())
def test_any_damaged_byte_is_noticed(data: st.DataObject) -> None:
    manifest = build_manifest(BATCH, content_of(DataFile("a", 10, 1)))
    position = data.draw(st.integers(0, len(manifest.content) - 1))
    flipped = data.draw(st.integers(1, 255))
    content = bytearray(manifest.content)
    content[position] ^= flipped
    with pytest.raises(ManifestCorruptError):
        decode(dataclasses.replace(manifest, content=bytes(content)))


@pytest.mark.slow
def test_100_000_files_take_less_than_4_mb() -> None:
    many = tuple(
        DataFile(
            f"day={i % 50}/penstock-0d2c8a54-6d0e-4d3b-9c0a-{i:012d}.zstd.parquet",
            1_000_000 + i,
            1000,
            (("day", str(i % 50)),),
            json.dumps({"numRecords": 1000, "minValues": {"id": i}, "maxValues": {"id": i + 999}}),
        )
        for i in range(100_000)
    )
    manifest = build_manifest(BATCH, content_of(*many, partition_by=("day",)))
    assert decode(manifest).files == many
    assert len(manifest.content) < 4_000_000


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../v1", "a/../../v1", "a/%2e%2E/b", "%252e./b", "s3://lake/t/a", "file:/a", "a/"],
)
def test_a_path_that_leads_out_of_the_table_is_refused(path: str) -> None:
    manifest = build_manifest(BATCH, content_of(DataFile("p=%2F../a", 1, 1), DataFile(path, 1, 1)))
    with pytest.raises(ManifestCorruptError, match="not a path below the table"):
        decode(manifest)
