"""Manifests of batches for tables of `penstock.sql`."""

from __future__ import annotations

from ..database.content import Manifests
from .address import SqlAddress
from .types import is_staged_as

KIND = "sql"

MANIFESTS = Manifests(KIND, "table of penstock.sql", is_staged_as, SqlAddress.parse)
