"""Manifests of batches for Postgres tables."""

from __future__ import annotations

from ..database.content import Manifests
from .address import PostgresAddress
from .types import is_staged_as

KIND = "postgres"

MANIFESTS = Manifests(KIND, "Postgres table", is_staged_as, PostgresAddress.parse)
