"""Column names that are odd but allowed, and which of them no table can have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

ODD_NAMES = [
    "a",
    "A",
    "a.b",
    "A.B",
    "a.element",
    "a.key",
    "a.value.b",
    "a b",
    " a",
    "a ",
    " ",
    "`",
    "a`b",
    '"',
    "'",
    "a,b",
    "a;b",
    "{a}",
    "(a)",
    "a\nb",
    "a\tb",
    "a=b",
    "a:b",
    "a/b",
    "a\\b",
    "%",
    "%2F",
    ".",
    "..",
    "a.",
    ".a",
    "-",
    "*",
    "?",
    "#",
    "$",
    "[0]",
    "1",
    "select",
    "SELECT",
    "null",
    "true",
    "\U0001f600",
    "\u00e9",
    "e\u0301",
    "\u00c9",
    "\u0130",
    "\u00df",
    "\u03a3",
    "\u03c2",
    "\ufeff",
    "\u2028",
    "\x01",
    "\x7f",
    "_metadata",
    "_file",
    "_pos",
    "_delta_log",
    "_change_type",
    "_row_id",
    "__HIVE_DEFAULT_PARTITION__",
    "element",
    "key",
    "value",
    "list",
    "filename",
    "file_row_number",
    "x" * 300,
    "x" * 3000,
]
UNUSABLE_NAMES = ["", "\0", "a\0b"]

NAMES = st.sampled_from(ODD_NAMES) | st.text(max_size=12)
MAYBE_UNUSABLE_NAMES = NAMES | st.sampled_from(UNUSABLE_NAMES)


def unusable_names(kind: DataType) -> set[str]:
    """Names that a schema cannot have, wherever they are in it."""
    found: set[str] = set()
    for struct in structs_in(kind):
        counts = Counter(name.lower() for name in struct.names)
        found |= {name for name in struct.names if counts[name.lower()] > 1 or not name or "\0" in name}
    return found


def structs_in(kind: DataType) -> Iterator[StructType]:
    if isinstance(kind, StructType):
        yield kind
        for field in kind.fields:
            yield from structs_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from structs_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from structs_in(kind.keyType)
        yield from structs_in(kind.valueType)


def same_paths(schema: StructType) -> set[str]:
    """Dotted paths that are those of two columns: Iceberg knows columns by them."""
    paths = list(_paths(schema, ""))
    counts = Counter(path.lower() for path in paths)
    return {path for path in paths if counts[path.lower()] > 1}


def short_paths(schema: StructType) -> set[str]:
    """In lower case, also those without `element` and `value` around structs, which Iceberg knows too."""
    return {path.lower() for path in (*_paths(schema, ""), *_paths(schema, "", is_short=True))}


def _paths(kind: DataType, prefix: str, *, is_short: bool = False) -> Iterator[str]:
    parts: list[tuple[str, DataType]] = []
    if isinstance(kind, StructType):
        parts = [(field.name, field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [("element", kind.elementType)]
    elif isinstance(kind, MapType):
        parts = [("key", kind.keyType), ("value", kind.valueType)]
    for name, inner in parts:
        path = f"{prefix}.{name}" if prefix else name
        yield path
        is_left_out = is_short and not isinstance(kind, StructType) and isinstance(inner, StructType)
        yield from _paths(inner, prefix if is_left_out and name != "key" else path, is_short=is_short)
