"""Formats of data files other than Parquet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import pyarrow as pa

from . import avro, csv_text, json_lines, orc
from .counted import Counted


class Encoder(Protocol):
    """Encodes the rows of one file."""

    @property
    def memory_bytes(self) -> int:
        """Approximate size of what it keeps between two calls."""
        ...

    def write(self, rows: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files that have no Parquet footer."""

    suffixes: Mapping[str, str]
    """File name suffix by codec; the first codec is the default."""
    open: Callable[[Counted, pa.Schema, str], Encoder]
    """Called with the file, the columns and the codec."""
    problems: Callable[[pa.Schema], Iterator[str]]
    """Columns that readers do not read back unchanged, with a remedy for each."""
    check_values: Callable[[pa.RecordBatch], None]
    """Raises SchemaMismatchError for a value that readers do not read back unchanged."""
    stored_types: Callable[[BinaryIO], dict[str, str]]
    """The columns of an uncompressed file, and their types as `type_name` has them. May be empty."""
    type_name: Callable[[pa.DataType], str]


FORMATS: Mapping[str, FileFormat] = {
    "json": FileFormat(
        suffixes={"none": ".json", "gzip": ".json.gz", "zstd": ".json.zst"},
        open=json_lines.JsonLines,
        problems=json_lines.problems,
        check_values=json_lines.check_values,
        stored_types=json_lines.stored_types,
        type_name=json_lines.type_name,
    ),
    "csv": FileFormat(
        suffixes={"none": ".csv", "gzip": ".csv.gz", "zstd": ".csv.zst"},
        open=csv_text.CsvText,
        problems=csv_text.problems,
        check_values=csv_text.check_values,
        stored_types=csv_text.stored_types,
        type_name=lambda data_type: csv_text.TEXT,
    ),
    "avro": FileFormat(
        suffixes={"deflate": ".avro", "none": ".avro"},
        open=avro.Avro,
        problems=avro.problems,
        check_values=json_lines.check_values,
        stored_types=avro.stored_types,
        type_name=avro.type_name,
    ),
    "orc": FileFormat(
        suffixes={"zstd": ".orc", "snappy": ".orc", "zlib": ".orc", "none": ".orc"},
        open=orc.Orc,
        problems=orc.problems,
        check_values=orc.check_values,
        stored_types=orc.stored_types,
        type_name=orc.type_name,
    ),
}

_SUFFIX = re.compile(r"\.(parquet|json|csv|avro|orc)(\.gz|\.zst)?$")


def format_in(name: str) -> tuple[str, str | None] | None:
    """Return the format and the codec of the whole file that a file name shows; None for other files."""
    found = _SUFFIX.search(name)
    return None if found is None else (found[1], {".gz": "gzip", ".zst": "zstd"}.get(found[2] or ""))
