"""A service for `penstock.http`, one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.http_rows import HttpRows, http_rows


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpRows]:
    with http_rows() as server:
        yield server


@pytest.fixture
def http_service(http_server: HttpRows) -> HttpRows:
    """The service without rows, and without faults."""
    http_server.set()
    http_server.clear()
    return http_server
