"""The conformance suite for folders of files; of formats other than Parquet, what depends on the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.files import CsvHarness, FilesHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.cleaning import CleaningClaims
from penstock.testing.conformance.data import DataClaims


class TestFiles(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return FilesHarness(tmp_path)


class TestFormats(DataClaims, CleaningClaims):
    @pytest.fixture(params=["json", "csv", "avro", "orc"])
    def harness(self, tmp_path: Path, request: pytest.FixtureRequest) -> DestinationHarness:
        return CsvHarness(tmp_path) if request.param == "csv" else FilesHarness(tmp_path, request.param)
