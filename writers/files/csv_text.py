r"""CSV after RFC 4180, with a header: texts are quoted, NULL is an unquoted `\N`.

An empty field would be NULL for some readers and an empty text for others, and readers skip the empty line of
a NULL in a file of one column.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import string_array
from ...committers.errors import SchemaMismatchError
from ..parquet.columns import is_string
from ..requests.json_rows import check_times, json_values
from .counted import Counted, TextFile, corrupt_record_problems

NULL = r"\N"
TEXT = "text"
"""The type of all columns."""


class CsvText(TextFile):
    """See `Encoder`."""

    def __init__(self, file: Counted, schema: pa.Schema, codec: str) -> None:
        super().__init__(file, codec)
        names = (name.replace('"', '""') for name in schema.names)
        self.write_bytes((",".join([f'"{name}"' for name in names]) + "\n").encode())

    def write(self, rows: pa.RecordBatch) -> None:
        fields = [_fields(array, name) for array, name in zip(rows.columns, rows.schema.names, strict=True)]
        lines = pc.binary_join_element_wise(*fields, _text(","))
        self.write_bytes("\n".join([*lines.to_pylist(), ""]).encode())


def problems(schema: pa.Schema) -> Iterator[str]:
    yield from corrupt_record_problems(schema)
    for field in schema:
        if pa.types.is_nested(field.type):
            yield f"{field.name} is {field.type}, which CSV does not have. Use to_json({field.name})."
        elif not (is_string(field.type) or _has_text(field.type)):
            yield f"{field.name} is {field.type}, which CSV does not have. Use base64({field.name})."


def check_values(rows: pa.RecordBatch) -> None:
    """
    Raises:
        SchemaMismatchError: a text is the one that stands for NULL, or a time has no text.
    """
    check_times(rows)
    for array, field in zip(rows.columns, rows.schema, strict=True):
        if is_string(field.type) and pc.any(pc.equal(array, _text(NULL).cast(field.type))).as_py():
            raise SchemaMismatchError(
                f"A text in {field.name} is {NULL}, which is NULL in the CSV files of penstock.files. "
                "Replace it, or write another fileFormat."
            )


def stored_types(content: BinaryIO) -> dict[str, str]:
    header = next(csv.reader(io.TextIOWrapper(content, "utf-8", newline="")), [])
    return dict.fromkeys(header, TEXT)


def _fields(array: pa.Array, name: str) -> pa.Array:
    if is_string(array.type):
        quoted = pc.replace_substring(array.cast(pa.string()), '"', '""')
        texts = pc.binary_join_element_wise(_text('"'), quoted, _text('"'), _text(""))
    elif pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        texts = array.cast(pa.string())
    else:
        values = (None if value is None else str(value) for value in json_values(array, name))
        texts = pa.array(values, pa.string())
    return pc.fill_null(texts, NULL)


def _text(text: str) -> pa.Scalar:
    return string_array([text])[0]


def _has_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
        or types.is_boolean(data_type)
        or types.is_date(data_type)
        or types.is_timestamp(data_type)
    )
