"""What the manifests of an Iceberg table say of the values in a file: bounds, NULLs, NaN, partitions.

Format: Iceberg's specification, "Manifests".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType

from ..predicates import ONLY_NULL, Ranges, ValueRange
from ..values import Path
from .bounds import decoder
from .partitions import PartitionRanges

ValueT = TypeVar("ValueT")


class FileRanges:
    """Ranges of the columns of a schema."""

    def __init__(self, schema: Schema, partitions: PartitionRanges) -> None:
        self._schema = schema
        self._partitions = partitions
        self._columns: dict[Path, _Column] = {}

    def of(self, file: DataFile) -> Ranges:
        """Return what is known of the columns in a file."""

        def known(path: Path) -> ValueRange:
            column = self._columns.get(path)
            if column is None:
                field = self._schema.find_field(".".join(path))
                column = self._columns[path] = _Column(field.field_id, field.field_type, len(path) > 1)
            return self._partitions.narrow(column.range(file), path, file)

        return known


class _Column:
    """One that is compared. Planning asks for its range in each file of the table."""

    def __init__(self, number: int, kind: IcebergType, is_nested: bool) -> None:
        self._number, self._is_nested = number, is_nested
        self._is_float = isinstance(kind, FloatType | DoubleType)
        self._decode = decoder(kind)

    def range(self, file: DataFile) -> ValueRange:
        nulls = self._of(file.null_value_counts)
        if nulls == file.record_count and not self._is_nested:
            return ONLY_NULL
        return ValueRange(
            self._bound(file.lower_bounds),
            self._bound(file.upper_bounds),
            may_be_null=self._is_nested or nulls != 0,
            may_be_nan=self._is_float and self._of(file.nan_value_counts) != 0,
        )

    def _of(self, values: Mapping[int, ValueT] | None) -> ValueT | None:
        return None if values is None else values.get(self._number)

    def _bound(self, bounds: Mapping[int, bytes] | None) -> Any:
        """Return a bound as conditions compare it; None if it is unknown."""
        value = self._of(bounds)
        return None if value is None else self._decode(value)
