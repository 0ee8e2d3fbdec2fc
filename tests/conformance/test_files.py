"""The conformance suite for folders of Parquet files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.files import FilesHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestFiles(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return FilesHarness(tmp_path)
