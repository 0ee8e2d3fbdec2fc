"""Skips tests of servers and libraries that cannot be downloaded here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from servers.unreachable import UnreachableError


@contextmanager
def skipped_if_unreachable() -> Iterator[None]:
    """Skip the test, and every other test of the fixture, if a download in the block fails."""
    try:
        yield
    except UnreachableError as error:
        pytest.skip(str(error))
