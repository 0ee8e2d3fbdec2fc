"""The column names that no table can have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyspark.sql.types import DataType, StructType
from tests.bad_input.kinds import parts, walk


def unusable_names(kind: DataType) -> set[str]:
    """Names that a schema cannot have at any level: empty, with NUL, or twice but for their case."""
    found: set[str] = set()
    for struct in walk(kind):
        if isinstance(struct, StructType):
            counts = Counter(name.lower() for name in struct.names)
            found |= {name for name in struct.names if counts[name.lower()] > 1 or not name or "\0" in name}
    return found


def same_paths(schema: StructType) -> set[str]:
    """Dotted paths of two columns at once: Iceberg identifies columns by them."""
    paths = list(_paths(schema, ""))
    counts = Counter(path.lower() for path in paths)
    return {path for path in paths if counts[path.lower()] > 1}


def short_paths(schema: StructType) -> set[str]:
    """All paths in lower case, also without `element` and `value` around structs: Iceberg knows both."""
    return {path.lower() for path in (*_paths(schema, ""), *_paths(schema, "", is_short=True))}


def _paths(kind: DataType, prefix: str, *, is_short: bool = False) -> Iterator[str]:
    for name, inner in parts(kind):
        path = f"{prefix}.{name}" if prefix else name
        yield path
        is_left_out = is_short and not isinstance(kind, StructType) and isinstance(inner, StructType)
        yield from _paths(inner, prefix if is_left_out and name != "key" else path, is_short=is_short)
