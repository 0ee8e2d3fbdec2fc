"""The conformance suite: checks Penstock's promises on one destination.

    class KafkaHarness(DestinationHarness): ...          # a destination, how to read it, how to break it

    class TestKafka(DestinationConformance):             # in a test file, for pytest
        @pytest.fixture
        def harness(self, tmp_path: Path) -> DestinationHarness:
            return KafkaHarness(tmp_path)

It does not start Spark. docs/write-a-destination.md has a complete example.
"""

from __future__ import annotations

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from ..faults import Lost  # noqa: E402
from .harness import SECRET, DestinationHarness, Promises  # noqa: E402  pytest rewrites their asserts
from .query import Query  # noqa: E402
from .request_harness import RequestHarness  # noqa: E402
from .suite import DestinationConformance  # noqa: E402

__all__ = [
    "SECRET",
    "DestinationConformance",
    "DestinationHarness",
    "Lost",
    "Promises",
    "Query",
    "RequestHarness",
]
