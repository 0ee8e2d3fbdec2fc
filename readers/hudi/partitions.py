"""What the folder of a partition says of the values in the files of a Hudi table.

Folders: Hudi's `PartitionPathEncodeUtils`, and its key generators Simple and Complex, which write values as
texts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

import pyarrow as pa

from ...committers.hudi.properties import ID, flag, key_generator, names_in
from ...writers.hudi.table_format import NULL_PARTITION
from ..predicates import UNKNOWN, Ranges, ValueRange
from ..values import Path, parse_date

NULL_PARTITIONS = (NULL_PARTITION, "default")
"""Folders of rows with NULL or an empty text; the second one is that of old versions of Hudi."""

FOLDERS_KEPT = 10_000


class FolderRanges:
    """Ranges of the columns of a table.

    Args:
        properties: of the table
    """

    def __init__(self, properties: Mapping[str, str], schema: pa.Schema) -> None:
        fields = names_in(properties.get("hoodie.table.partition.fields", ""))
        self._names = fields if _has_values(properties) else ()
        self._is_hive_style = flag(properties, "hoodie.datasource.write.hive_style_partitioning")
        self._is_encoded = flag(properties, "hoodie.datasource.write.partitionpath.urlencode")
        self._schema = schema
        self._known = lru_cache(FOLDERS_KEPT)(self._of_folder)

    def of(self, path: str) -> Ranges:
        """Return what is known of the columns in a file, by its path in the table."""
        found = self._known(posixpath.dirname(path))
        return lambda column: found.get(column, UNKNOWN)

    def _of_folder(self, folder: str) -> Mapping[Path, ValueRange]:
        parts = folder.split("/")
        if len(parts) != len(self._names):  # texts that are not encoded may have slashes
            return {}
        return {(name,): self._of_value(name, part) for name, part in zip(self._names, parts, strict=True)}

    def _of_value(self, name: str, part: str) -> ValueRange:
        prefix = f"{name}=" if self._is_hive_style else ""
        text = part.removeprefix(prefix)
        if not part.startswith(prefix) or text in NULL_PARTITIONS or name not in self._schema.names:
            return UNKNOWN
        return _range(unquote(text) if self._is_encoded else text, self._schema.field(name).type)


def _has_values(properties: Mapping[str, str]) -> bool:
    """Return True if rows have the values of their folder. With a global index, Hudi's writers may leave a
    row in its folder that gets another value, and no property of the table tells. So only tables that
    Penstock has created count, and none with the index of which that is the default.
    """
    is_text = key_generator(properties) in ("SIMPLE", "COMPLEX")
    indexes = names_in(properties.get("hoodie.table.metadata.partitions", ""))
    return is_text and bool(properties.get(ID)) and "record_index" not in indexes


def _range(text: str, data_type: pa.DataType) -> ValueRange:
    try:
        if pa.types.is_string(data_type):
            value: int | str = text
        elif pa.types.is_signed_integer(data_type):
            value = int(text)
        elif pa.types.is_date32(data_type):
            value = parse_date(text)
        else:
            return UNKNOWN
    except ValueError:
        return UNKNOWN
    return ValueRange(value, value, may_be_null=False, may_be_nan=False)
