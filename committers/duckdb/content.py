"""Manifests of batches for DuckDB tables."""

from __future__ import annotations

from ..database.content import Manifests
from .address import DuckDbAddress
from .types import is_staged_as

KIND = "duckdb"

MANIFESTS = Manifests(KIND, "DuckDB table", is_staged_as, DuckDbAddress.parse)
