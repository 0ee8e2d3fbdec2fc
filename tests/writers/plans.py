"""Plans with what is asked for and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.committers.contract import SortField
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.plan import WritePlan

OF_THE_FORMAT = ("partition_by", "statistics_columns", "statistics_columns_max")


def delta_plan(
    location: object,
    schema: pa.Schema,
    storage_options: Mapping[str, str] | None = None,
    *,
    sort_within: tuple[str, ...] = (),
    **options: Any,
) -> WritePlan:
    """Options of the table format and of the plan, by name; `sort_within` ascending, NULLs last."""
    of_format = {name: options.pop(name) for name in OF_THE_FORMAT if name in options}
    sort = tuple([SortField((name,)) for name in sort_within])
    table_format = DeltaFormat(**of_format)
    return WritePlan(str(location), dict(storage_options or {}), schema, table_format, sort=sort, **options)
