"""The conformance suite: what Penstock promises, checked of one destination.

    class KafkaHarness(DestinationHarness): ...          # a destination, how to read it, how to break it

    class TestKafka(DestinationConformance):             # in a test file, for pytest
        @pytest.fixture
        def harness(self, tmp_path: Path) -> DestinationHarness:
            return KafkaHarness(tmp_path)

It starts no Spark. docs/write-a-destination.md has a whole example.
"""

from __future__ import annotations

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from ..faults import Lost  # noqa: E402
from .harness import SECRET, DestinationHarness, Promises  # noqa: E402 - their asserts are to be rewritten
from .query import Query  # noqa: E402
from .suite import DestinationConformance  # noqa: E402

__all__ = ["SECRET", "DestinationConformance", "DestinationHarness", "Lost", "Promises", "Query"]
