"""A folder of files on S3, as the conformance suite needs it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from servers.s3 import BUCKET, s3_client
from tests.support.files import FilesHarness

from penstock.committers.errors import RetryableError
from penstock.committers.files.bucket import Bucket
from penstock.testing.conformance.harness import SECRET
from penstock.testing.faults import Lost


@lru_cache
def _client(storage: tuple[tuple[str, str], ...]) -> Any:
    return s3_client(dict(storage))


class S3FilesHarness(FilesHarness):
    """A folder on S3, read by polars."""

    promises = replace(
        FilesHarness.promises,
        name="Folders of files on S3",
        payload="multipart uploads that are not completed",
        commit="the journal of the query is replaced; then the uploads it lists are completed one by one",
        token="an object for each query below the folder",
        shows_secrets_to_tasks=True,
    )

    def __init__(self, storage: dict[str, str], work: Path) -> None:
        super().__init__(work)
        self.storage = storage
        self.name = f"folders/{uuid.uuid4().hex}"

    @property
    def client(self) -> Any:
        return _client(tuple(self.storage.items()))

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    @property
    def options(self) -> dict[str, str]:
        return {"path": self.uri, **{f"storage.{name}": value for name, value in self.storage.items()}}

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, "storage.AWS_SECRET_ACCESS_KEY": SECRET}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.secret_options, "storage.AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    def paths(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [one["Key"].removeprefix(f"{self.name}/") for one in listed.get("Contents", ())]

    def ids(self) -> list[int]:
        if not any(path.endswith(".parquet") for path in self.paths()):
            return []
        rows = pl.scan_parquet(
            f"{self.uri}/*.parquet",
            storage_options=self.storage,
            missing_columns="insert",
            extra_columns="ignore",
        )
        return list(rows.select("id").collect()["id"])

    def uploads(self) -> list[tuple[str, str]]:
        """Path and upload id of what is staged."""
        listed = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [
            (one["Key"].removeprefix(f"{self.name}/"), one["UploadId"]) for one in listed.get("Uploads", ())
        ]

    def uncommitted(self) -> Collection[str]:
        return {path for path, _ in self.uploads()}

    @contextmanager
    def losing(self, lost: Lost) -> Iterator[None]:
        """Lose the request that replaces the journal."""
        put, left = Bucket._put, [lost]

        def lossy_put(bucket: Bucket, path: str, content: bytes, **condition: str) -> str:
            if not left or not path.endswith(".journal"):
                return put(bucket, path, content, **condition)
            if left.pop() == "response":
                put(bucket, path, content, **condition)
            raise RetryableError("the connection was lost")

        with mock.patch.object(Bucket, "_put", lossy_put):
            yield
        assert not left, "the journal was not replaced"

    def delete_uncommitted(self) -> None:
        """As a lifecycle rule does."""
        for path, upload_id in self.uploads():
            self.client.abort_multipart_upload(Bucket=BUCKET, Key=f"{self.name}/{path}", UploadId=upload_id)

    def put(self, path: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.name}/{path}", Body=content)

    def append(self, row_id: int) -> None:
        self.folder.mkdir(exist_ok=True)
        super().append(row_id)
        name = f"others-{row_id}.{self.file_format}"
        self.put(name, (self.folder / name).read_bytes())

    def drop(self) -> None:
        for path in self.paths():
            self.client.delete_object(Bucket=BUCKET, Key=f"{self.name}/{path}")
        self.delete_uncommitted()
