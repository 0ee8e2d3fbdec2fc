"""JSON: an object for each row and line, with all columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from ..requests.json_rows import check_times, json_objects, json_problems
from .counted import Counted, TextFile, corrupt_record_problems

_ANY = ""
"""NULL does not show the type of its column."""


class JsonLines(TextFile):
    """See `Encoder`."""

    def __init__(self, file: Counted, schema: pa.Schema, codec: str) -> None:
        super().__init__(file, codec)

    def write(self, rows: pa.RecordBatch) -> None:
        self.write_bytes(b"\n".join([*json_objects(rows), b""]))


def problems(schema: pa.Schema) -> Iterator[str]:
    yield from corrupt_record_problems(schema)
    yield from json_problems(schema)


def check_values(rows: pa.RecordBatch) -> None:
    check_times(rows)


def stored_types(content: BinaryIO) -> dict[str, str]:
    row = json.loads(content.readline())
    if not isinstance(row, dict):
        raise ValueError("it does not have an object in each line")
    return {name: _kind(value) for name, value in row.items()}


def type_name(data_type: pa.DataType) -> str:
    """Return what JSON calls the values."""
    if pa.types.is_floating(data_type):
        return _ANY  # NaN is a string
    if pa.types.is_boolean(data_type):
        return "boolean"
    if pa.types.is_map(data_type) or pa.types.is_struct(data_type):
        return "object"
    if pa.types.is_nested(data_type):
        return "array"
    return "number" if pa.types.is_integer(data_type) else "string"


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: _ANY, str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), _ANY)
