"""Manifests of batches for MySQL tables."""

from __future__ import annotations

from ..database.content import Manifests
from .address import MySqlAddress
from .types import is_staged_as

KIND = "mysql"

MANIFESTS = Manifests(KIND, "MySQL table", is_staged_as, MySqlAddress.parse)
