"""Values of each type that Spark has, for destinations that keep all of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

NOW = datetime(1900, 1, 2, 3, 4, 5, 678901, timezone.utc)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, None]),
    "byte": (pa.int8(), [-128, None]),
    "short": (pa.int16(), [-(2**15), None]),
    "int": (pa.int32(), [-(2**31), None]),
    "long": (pa.int64(), [-(2**63), None]),
    "float": (pa.float32(), [1.5, None]),
    "double": (pa.float64(), [float("-inf"), None]),
    "string": (pa.string(), ["ä", None, ""]),
    "binary": (pa.binary(), [b"\xff", None, b""]),
    "date": (pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOW, None]),
    "timestamp_ntz": (pa.timestamp("us"), [NOW.replace(tzinfo=None), None]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-12345678901234567890.0123456789"), None]),
    "array": (pa.list_(pa.string()), [["a", None], None, []]),
    "array of arrays": (pa.list_(pa.list_(pa.int64())), [[[1, None], None, []], None, []]),
    "array of floats": (pa.list_(pa.float32()), [[1.0, None], None, []]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, None]),
    "array of structs": (pa.list_(pa.struct([("a", pa.int32())])), [[{"a": 1}, None], None, []]),
    "struct of arrays": (
        pa.struct([("l", pa.list_(pa.int32())), ("d", pa.decimal128(5, 2))]),
        [{"l": [1], "d": Decimal("-0.01")}, {"l": None, "d": None}, None],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None, []]),
    "map of structs": (pa.map_(pa.string(), pa.struct([("a", pa.int32())])), [[("a", {"a": 1})], None]),
    "array of maps": (pa.list_(pa.map_(pa.string(), pa.int32())), [[[("a", 1)], None], None]),
}


def rows_of_all_types(without: Collection[str] = ()) -> pa.Table:
    """Three rows with an id and a column of each type. Its name is that of the type with underscores."""
    columns = {"id": pa.array(range(3), pa.int64())}
    for name, (kind, values) in VALUES.items():
        if name not in without:
            padded = [*values, *[None] * (3 - len(values))]
            columns[name.replace(" ", "_")] = pa.array(padded, kind)
    return pa.table(columns)
