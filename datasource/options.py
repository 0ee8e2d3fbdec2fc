"""Options of the sinks: parsed once, on the driver, into a frozen dataclass.

All problems are reported together. Spark hands over keys in lower case, so they are matched without case
and named in messages as documented.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..committers.errors import ConfigurationError

STORAGE_PREFIX = "storage."
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """Options of `penstock.delta`. Field docs are the source of the table in the README."""

    path: str
    checkpoint_location: str | None = None
    store: str | None = field(default=None, repr=False)
    query_name: str = ""
    partition_by: tuple[str, ...] | None = None
    create_table: bool = True
    table_properties: Mapping[str, str] = field(default_factory=dict)
    add_columns: bool = False
    target_file_bytes: int = 128 * MIB
    buffer_bytes_max: int = 64 * MIB
    row_group_rows: int = 1_000_000
    max_open_partitions: int = 100
    compression: str = "zstd"
    sort_within: tuple[str, ...] = ()
    commit_attempts_max: int = 20
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DeltaOptions:
        """Parse what Spark hands over.

        Raises:
            ConfigurationError: lists everything that is wrong, one sentence each.
        """
        values: dict[str, Any] = {}
        problems: list[str] = []
        for key, text in options.items():
            if key.lower().startswith(STORAGE_PREFIX):
                name = key[len(STORAGE_PREFIX) :].upper()
                values.setdefault("storage_options", {})[name] = text
            elif (option := _OPTIONS.get(key.lower())) is None:
                problems.append(_unknown(key))
            else:
                try:
                    values[option.field] = option.parse(text)
                except ValueError as problem:
                    problems.append(f"{option.name}={text!r}: {problem}.")
        if not values.get("path"):
            problems.append(
                'path is missing: say where the table is with .option("path", ...) or .start(path).'
            )
        problems += _conflicts(values)
        if problems:
            raise ConfigurationError("Options of penstock.delta:\n  - " + "\n  - ".join(problems))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Option:
    """One documented option."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _OPTIONS, n=1)
    hint = (
        f" Did you mean {_OPTIONS[near[0]].name}?"
        if near
        else f" Known: {', '.join(o.name for o in OPTIONS)}."
    )
    return f"{key} is not an option.{hint}"


def _conflicts(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        problems.append("store: an in-memory database forgets its manifests; name a file or a Postgres URL.")
    both = set(values.get("partition_by") or ()) & set(values.get("sort_within") or ())
    if both:
        problems.append(
            f"sortWithin names partition column(s) {', '.join(sorted(both))}: they are constant in a file."
        )
    return problems


def _is_memory(url: str) -> bool:
    return url in ("sqlite://", "sqlite:///") or ":memory:" in url


# Parsers: text to value, ValueError with a sentence's end ------------------------------------------


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low:,} to {high:,}")
        return int(text)

    return parse


def _size(low: int, high: int) -> Callable[[str], int]:
    units = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}

    def parse(text: str) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
        if not match or match[2] not in units:
            raise ValueError("must be a size such as 128mb, 1g or a number of bytes")
        size = int(float(match[1]) * units[match[2]])
        if not low <= size <= high:
            raise ValueError(f"must be between {low:,} and {high:,} bytes")
        return size

    return parse


def _columns(text: str) -> tuple[str, ...]:
    """`a, b` or, for names with commas, a JSON array."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("must be an array of column names")
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("must name at least one column")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("names a column twice")
    return tuple(names)


def _properties(text: str) -> dict[str, str]:
    """A JSON object: option keys lose their case on the way through Spark, table properties must not."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(value, str) for value in parsed.values()):
        raise ValueError("""must be a JSON object of strings, such as {"delta.appendOnly": "true"}""")
    return parsed


def _one_of(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.strip().lower() not in {choice.lower() for choice in choices}:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return next(value for choice, value in choices.items() if choice.lower() == text.strip().lower())

    return parse


_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "uncompressed": "none"}

OPTIONS = (
    Option("path", "path", _text, "Where the table is: a local path, or a URL such as `s3://bucket/table`."),
    Option(
        "checkpointLocation",
        "checkpoint_location",
        _text,
        "Spark's own option. Must be set on the stream writer: the configuration `spark.sql.streaming."
        "checkpointLocation` is not shown to Python sinks.",
    ),
    Option(
        "store",
        "store",
        _text,
        "SQLAlchemy URL of the manifest store. Default: SQLite in the checkpoint directory if that is local.",
    ),
    Option("queryName", "query_name", _text, "Spark's own option; shown by `penstock status`."),
    Option(
        "partitionBy", "partition_by", _columns, "Partition columns of a new table: `a, b` or a JSON array."
    ),
    Option("createTable", "create_table", _flag, "Create the table if there is none. Default `true`."),
    Option(
        "tableProperties",
        "table_properties",
        _properties,
        "Properties of a new table, as a JSON object of strings.",
    ),
    Option(
        "schemaEvolution",
        "add_columns",
        _one_of({"none": False, "addColumns": True}),
        "`addColumns` adds new nullable columns to the table. Default `none`.",
    ),
    Option(
        "targetFileSize",
        "target_file_bytes",
        _size(MIB // 16, 64 * 1024 * MIB),
        "Data files are rolled at about this size. Default `128mb`.",
    ),
    Option(
        "bufferSize",
        "buffer_bytes_max",
        _size(MIB, 64 * 1024 * MIB),
        "Rows that one task buffers, over all open partitions, in Arrow bytes. Default `64mb`.",
    ),
    Option(
        "rowGroupRows",
        "row_group_rows",
        _count(1, 2**31 - 1),
        "Rows in a Parquet row group. Default 1,000,000.",
    ),
    Option(
        "maxOpenPartitions",
        "max_open_partitions",
        _count(1, 10_000),
        "Data files that one task keeps open; the least recently used is closed. Default 100.",
    ),
    Option(
        "compression",
        "compression",
        _one_of(_CODECS),
        f"One of {', '.join(_CODECS)}. Default `zstd`.",
    ),
    Option("sortWithin", "sort_within", _columns, "Sort rows by these columns within each row group."),
    Option(
        "maxCommitAttempts",
        "commit_attempts_max",
        _count(1, 10_000),
        "Attempts to commit a batch against other writers before the query fails. Default 20.",
    ),
)

_OPTIONS = {option.name.lower(): option for option in OPTIONS}

assert {option.field for option in OPTIONS} | {"storage_options"} == {f.name for f in fields(DeltaOptions)}
