"""Changes by key in databases: what is the same for all of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.contract import Changes
from penstock.committers.database.layout import PlanOptions
from penstock.committers.database.plan import plan
from penstock.committers.duckdb.address import DuckDbAddress
from penstock.committers.duckdb.dialect import DuckDbDialect
from penstock.committers.errors import ConfigurationError


class WithoutChanges(DuckDbDialect):
    """A database that takes no changes."""

    changes = None  # type: ignore[assignment]


def test_a_database_without_changes_refuses_them_by_name_before_it_is_asked_anything() -> None:
    cursor: Any = None
    address = DuckDbAddress("/lake.duckdb", "main", "events")
    options = PlanOptions(mode=Changes(keys=("id",)))
    with pytest.raises(
        ConfigurationError, match="writeMode=upsert: Penstock only appends to tables of DuckDB"
    ):
        plan(cursor, WithoutChanges(), address, pa.schema([("id", pa.int64())]), options)
