"""Needs pypaimon, which is in an environment of its own: `make test-paimon`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.spark.conftest import spark
from tests.support.paimon_table import PaimonHarness

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query

__all__ = ["spark"]

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py"]


@pytest.fixture
def harness(tmp_path: Path) -> PaimonHarness:
    return PaimonHarness(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def query(harness: PaimonHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)
