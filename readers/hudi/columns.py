"""Columns of a Hudi table, to compare those of a commit with those of a stream. They have no ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..streaming.columns import ArrowColumn


def columns_by_name(
    there: pa.Schema, read: pa.Schema
) -> tuple[Mapping[str, ArrowColumn], Mapping[str, ArrowColumn]]:
    """Return the columns of a commit and those of the stream. A column that is NOT NULL in the commit alone
    counts as the same: the stream takes NULL, too.
    """
    nullable = {one.name for one in read if one.nullable}
    fitting = [one.with_nullable(one.nullable or one.name in nullable) for one in there]
    return _columns(fitting), _columns(read)


def _columns(fields: Iterable[pa.Field]) -> Mapping[str, ArrowColumn]:
    return {one.name: ArrowColumn(one.name, one.type, not one.nullable) for one in fields}
