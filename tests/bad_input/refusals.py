"""What a refusal owes to the user: one of three errors that names the column, and no file left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType
from tests.bad_input.tables import write
from tests.support.lakes import LakeTable

from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError

REFUSALS = (ConfigurationError, SchemaMismatchError, TableNotSupportedError)


def refused() -> AbstractContextManager[pytest.ExceptionInfo[Exception]]:
    return pytest.raises(REFUSALS)


def refusal(act: Callable[[], object]) -> str | None:
    """The message with which something is refused; None if it is not. Any other error fails the test."""
    try:
        act()
    except REFUSALS as error:
        return str(error)
    return None


def check_refused(
    table: LakeTable,
    schema: StructType,
    names: Collection[str],
    rows: Sequence[pa.RecordBatch] = (),
    **options: str,
) -> None:
    """By an error that has each of these names in it; no file is left. Without rows: when it is planned."""
    with refused() as caught:
        write(table, schema, rows, **options)
    message = str(caught.value)
    assert all(name in message or repr(name)[1:-1] in message for name in names), message
    assert table.data_files() == set()


def columns_without_feature(schema: StructType) -> list[str]:
    """Columns with timestamp_ntz inside a map, which the Delta library makes no readable table of; unless
    there is one elsewhere."""
    if any(_has_ntz(field.dataType, in_maps=False) for field in schema.fields):
        return []
    return [str(field.name) for field in schema.fields if _has_ntz(field.dataType, in_maps=True)]


def _has_ntz(kind: DataType, *, in_maps: bool) -> bool:
    if isinstance(kind, StructType):
        return any(_has_ntz(field.dataType, in_maps=in_maps) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_ntz(kind.elementType, in_maps=in_maps)
    if isinstance(kind, MapType):
        return in_maps and any(_has_ntz(part, in_maps=True) for part in (kind.keyType, kind.valueType))
    return isinstance(kind, TimestampNTZType)
