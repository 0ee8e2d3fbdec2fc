"""The conformance suite for folders of files; of formats other than Parquet, what depends on the format."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from tests.support.files import CsvHarness, FilesHarness, JsonHarness
from tests.support.files_remote import AzureFilesHarness, RemoteFilesHarness, S3FilesHarness

from penstock.committers.files.bucket import Bucket
from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.cleaning import CleaningClaims
from penstock.testing.conformance.commits import CommitClaims
from penstock.testing.conformance.concurrency import ConcurrencyClaims
from penstock.testing.conformance.crashes import CrashClaims
from penstock.testing.conformance.data import DataClaims
from penstock.testing.conformance.responses import ResponseClaims
from penstock.testing.conformance.secrecy import SecrecyClaims


class TestFiles(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return FilesHarness(tmp_path)


@pytest.mark.campaign
class TestFormats(DataClaims, CleaningClaims):
    @pytest.fixture(params=["json", "csv", "avro", "orc"])
    def harness(self, tmp_path: Path, request: pytest.FixtureRequest) -> DestinationHarness:
        own = {"json": JsonHarness, "csv": CsvHarness}.get(request.param)
        return FilesHarness(tmp_path, request.param) if own is None else own(tmp_path)


def _begun_now(upload: tuple[str, str, datetime]) -> tuple[str, str, datetime]:
    """The server says that all uploads began in 2010."""
    path, upload_id, _ = upload
    return path, upload_id, datetime.now(timezone.utc)


class RemoteClaims(
    CommitClaims, CrashClaims, ResponseClaims, ConcurrencyClaims, SecrecyClaims, CleaningClaims
):
    """The claims that depend on the storage."""


@pytest.mark.campaign
class TestFilesOnS3(RemoteClaims):
    @pytest.fixture
    def harness(
        self, s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        uploads = Bucket.uploads
        monkeypatch.setattr(Bucket, "uploads", lambda bucket: map(_begun_now, uploads(bucket)))
        return _reached_by_commands(S3FilesHarness(s3, tmp_path), monkeypatch)


@pytest.mark.campaign
class TestFilesOnAzure(RemoteClaims):
    @pytest.fixture
    def harness(self, azure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        return _reached_by_commands(AzureFilesHarness(azure, tmp_path), monkeypatch)


def _reached_by_commands(harness: RemoteFilesHarness, monkeypatch: pytest.MonkeyPatch) -> RemoteFilesHarness:
    """Commands take the options from the environment."""
    for name, value in harness.storage.items():
        monkeypatch.setenv(name, value)
    harness.without_delays(monkeypatch)
    return harness
