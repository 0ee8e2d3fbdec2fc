"""Output of `penstock show --rows`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..committers.texts.safe_text import one_line
from ..operating.batch_rows import ShownRow
from . import output


def print_rows(rows: Sequence[ShownRow], total: int) -> None:
    """Print a table with one row for each.

    Args:
        total: rows of the batch
    """
    values = [json.loads(row.text) for row in rows]
    names = list(dict.fromkeys(name for one in values for name in one))
    table = output.table("Part", "Row", *map(one_line, names), left=names)
    for row, one in zip(rows, values, strict=True):
        table.add_row(str(row.part), str(row.row), *(_cell(one, name) for name in names))
    output.console().print(table)
    if len(rows) < total:
        output.print_line(f"... and {total - len(rows):,} more. Use --limit to see them.")


def _cell(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return one_line(text)
