"""Options of `penstock.files`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...committers.files.azure_account import account_in
from ...committers.files.object_folder import is_remote
from ...committers.files.partitions import TableName
from ...committers.iceberg.catalog import DEFAULT_NAME
from ...writers.local_path import local_path
from ..options.changes import refused_changes
from ..options.declaring import declared, option, optional, options_of, passed_on, prefixes_of
from ..options.delivery import TARGET_FILE_SIZE, DeliveryOptions
from ..options.parsing import MIB, check, columns, flag, one_of, parse_options, size, storable, text
from ..options.stream import normalized_location, problems_of, problems_of_evolution

NAME = "penstock.files"

_CODECS: Mapping[str, Mapping[str, str]] = {
    "parquet": {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "uncompressed": "none"},
    "json": {"uncompressed": "none", "gzip": "gzip", "zstd": "zstd"},
    "csv": {"uncompressed": "none", "gzip": "gzip", "zstd": "zstd"},
    "avro": {"deflate": "deflate", "uncompressed": "none"},
    "orc": {"zstd": "zstd", "snappy": "snappy", "zlib": "zlib", "uncompressed": "none"},
}
"""By format: the writer's name of each codec. The first one is the default."""
_ALL_CODECS = {codec: codec for codecs in _CODECS.values() for codec in codecs}


def _folder(path: str) -> str:
    uri = normalized_location(path)
    if is_remote(uri):
        return _in_object_store(uri)
    local = local_path(path)
    if not path.strip() or local is None:
        raise ValueError(
            "must be a folder of the local disk, on S3 or on Azure; other file systems are not supported"
        )
    folder = str(Path(local).resolve())
    if folder == "/":
        raise ValueError("must not be the root of the file system")
    return folder


def _table_name(name: str) -> str:
    return str(TableName.parse("", name))


def _in_object_store(uri: str) -> str:
    bucket, *folders = uri.partition("://")[2].split("/")
    if not bucket.partition("@")[0] or not folders:
        raise ValueError("must have a bucket or a container, and a folder in it: `s3://bucket/folder`")
    if not uri.startswith("s3://"):
        account_in(bucket)
    if re.search(r"[\x00-\x1f\x7f\\*]", uri) or not {"", ".", ".."}.isdisjoint(folders):
        raise ValueError(
            "must not contain control characters, backslashes, `*`, or the folders ``, `.`, `..`"
        )
    return uri


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOptions(DeliveryOptions):
    """Options of `penstock.files`."""

    path: str = field(
        metadata=declared(
            "path",
            _folder,
            "The folder: an absolute path on the local disk, `s3://bucket/folder`, `az://container/folder`, "
            "or `abfss://container@account.dfs.core.windows.net/folder`.",
        )
    )
    partition_by: tuple[str, ...] | None = optional(
        "partitionBy",
        columns,
        "Partition columns, for folders `column=value`: `a, b`, or a JSON array. Each query needs it. "
        "Spark ignores `partitionBy()` of a stream writer for this sink.",
    )
    target_file_bytes: int = option(
        "targetFileSize",
        size(MIB // 16, 64 * 1024 * MIB),
        "Approximate size of a file.",
        default=TARGET_FILE_SIZE,
    )
    buffer_bytes_max: int = option(
        "bufferSize",
        size(MIB, 64 * 1024 * MIB),
        "Size of the rows that one task buffers for all its open partitions, as Arrow data.",
        default="128mb",
    )
    file_format: str = option(
        "fileFormat",
        one_of({name: name for name in _CODECS}),
        f"Format of the files: {', '.join(_CODECS)}. Each query needs it.",
        default="parquet",
    )
    compression: str | None = optional(
        "compression",
        one_of(_ALL_CODECS),
        "Codec of the files: "
        + "; ".join([f"{name}: {', '.join(codecs)}" for name, codecs in _CODECS.items()])
        + ".",
        default="the first one of the format",
    )
    compact_with: str | None = optional(
        "compactWith",
        one_of({"local": "local", "none": "none"}),
        "With `delivery=decoupled`, `local`: the delivery process rewrites small files to `targetFileSize` "
        "before they become visible. Only Parquet files on the local disk: no process can read an upload "
        "before it is completed.",
        default="`local` for Parquet files on the local disk",
    )
    success: str = option(
        "successFiles",
        one_of({"none": "none", "batch": "batch", "partition": "partition"}),
        "`batch`: write an empty file `_SUCCESS` to the folder after each batch; `partition`: to the folder "
        "of each partition that the batch has files in.",
        default="none",
    )
    manifests: bool = option(
        "batchManifests",
        flag,
        "Write a file to `_manifest` for each batch, which lists the batch's files.",
        default="false",
    )
    takes_over: bool = option(
        "sparkMetadata",
        one_of({"refuse": False, "takeOver": True}),
        "A folder that Spark's own file sink has written: `refuse` it, or `takeOver`: move `_spark_metadata` "
        "and the files that it does not list to the staging folder. Only on the local disk, once the query "
        "of Spark's sink has ended for good.",
        default="refuse",
    )
    catalog_table_name: str | None = optional(
        "catalogTable",
        _table_name,
        "`database.table` of a Hive metastore or of Glue, whose location is the folder. Each batch adds its "
        "new partitions to it.",
    )
    catalog: str | None = optional(
        "catalog",
        text,
        "Name of the catalog of `catalogTable` in `.pyiceberg.yaml` or `PYICEBERG_CATALOG__NAME__*`. With "
        "the options `catalog.*`, any name.",
    )
    catalog_properties: Mapping[str, str] = passed_on(
        "catalog.",
        str.lower,
        "Properties of the catalog, as in `penstock.iceberg`: `catalog.type` (`glue` or `hive`), "
        "`catalog.uri`, `catalog.glue.region`, …",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of S3 and Azure, such as `storage.AWS_REGION`, named as in `penstock.delta`.",
    )

    @property
    def codec(self) -> str:
        """The writer's name of the codec."""
        codecs = _CODECS[self.file_format]
        return codecs[self.compression or next(iter(codecs))]

    @property
    def compacts(self) -> bool:
        """True if a delivery rewrites small files."""
        return self.compact_with != "none" and _can_compact(self.path, self.file_format)

    @property
    def catalog_table(self) -> TableName | None:
        """The table that gets the partitions."""
        name = self.catalog_table_name
        return None if name is None else TableName.parse(self.catalog or DEFAULT_NAME, name)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FilesOptions:
        """Parse the options that Spark passes.

        Raises:
            ConfigurationError: lists all problems, one sentence each.
        """
        refused = {name.lower(): problem for name, problem in refused_changes(NAME, OPTIONS).items()}
        known = {name: value for name, value in options.items() if name.lower() not in refused}
        values, problems = parse_options(OPTIONS, PREFIXES, known)
        problems += [refused[name.lower()] for name in options if name.lower() in refused]
        if not values.get("path") and "path" not in options:  # a wrong one is a problem already
            problems.append('path is missing: give the folder with .option("path", ...) or .start(path).')
        codecs, codec = _CODECS[values.get("file_format", "parquet")], values.get("compression")
        if codec is not None and codec not in codecs:
            problems.append(
                f"compression={codec} is no codec of the format {values.get('file_format', 'parquet')}; its "
                f"codecs: {', '.join(codecs)}."
            )
        problems += _of_compaction(values)
        if values.get("takes_over") and is_remote(values.get("path", "")):
            problems.append(
                "sparkMetadata=takeOver is only possible on the local disk. Write another folder, and copy "
                "the rows of the old one into it with Spark."
            )
        problems += _of_catalog(values, options)
        stored = storable(OPTIONS, options)
        problems += problems_of_evolution(cls, NAME, values)
        problems += problems_of(values, stored, PREFIXES)
        check(NAME, problems)
        return cls(**values, given=stored)


def _can_compact(path: str, file_format: str) -> bool:
    return file_format == "parquet" and not is_remote(path)


def _of_compaction(values: Mapping[str, Any]) -> Iterator[str]:
    path, file_format = values.get("path", ""), values.get("file_format", "parquet")
    if values.get("compact_with") == "local" and not _can_compact(path, file_format):
        what = f"files of format {file_format}" if file_format != "parquet" else "files in an object store"
        yield (
            f"compactWith=local is not possible for {what}: only Parquet files on the local disk can be "
            "rewritten before they become visible. Leave the option out. For larger files, coalesce the rows "
            "into fewer tasks, or use a longer trigger interval."
        )


def _of_catalog(values: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    is_named = not {"catalog", "catalog_properties"}.isdisjoint(values)
    if "catalog_table_name" not in values:
        if is_named and "catalogtable" not in map(str.lower, given):  # a wrong one is a problem already
            yield "catalogTable is missing: name the table of the catalog, `database.table`."
        return
    if not is_named:
        yield (
            "catalogTable needs a catalog: give catalog.type=glue, or catalog.type=hive with "
            "catalog.uri=thrift://host:port, or the name of a catalog in .pyiceberg.yaml as catalog. "
            "Delivery processes get these properties with --catalog."
        )
    if not values.get("partition_by"):
        yield (
            "catalogTable needs partitionBy: readers of a table without partitions find new files by "
            "themselves."
        )
    if values.get("file_format") == "csv":
        yield (
            "catalogTable: Hive and Athena read the CSV files of Penstock as texts only, and NULL as a text. "
            "Use another fileFormat."
        )


OPTIONS = options_of(FilesOptions)
PREFIXES = prefixes_of(FilesOptions)
