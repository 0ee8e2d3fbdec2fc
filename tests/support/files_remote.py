"""Folders of files on S3 and Azure, as the conformance suite needs them."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from unittest import mock

import botocore.retries.standard
import polars as pl
import pytest
import requests
from azure.storage.blob import ContainerClient, ExponentialRetry
from azure.storage.blob._shared.policies import StorageRequestHook
from botocore.awsrequest import AWSResponse
from requests.adapters import HTTPAdapter
from servers.azure import ACCOUNT, CONTAINER, azure_client, azure_names, azure_options
from servers.s3 import BUCKET, s3_client
from tests.support.files import FilesHarness

from penstock.committers.errors import RetryableError
from penstock.committers.files.bucket import Bucket, open_bucket
from penstock.committers.files.container import Container
from penstock.committers.files.object_folder import open_store
from penstock.committers.files.object_store import ObjectStore
from penstock.committers.files.staged import Upload
from penstock.testing.conformance.harness import SECRET
from penstock.testing.faults import Lost


class _RemoteFilesHarness(FilesHarness):
    """A folder in an object store, read by polars."""

    place: ClassVar[str]
    store_type: ClassVar[type[Any]]

    def __init__(self, storage: dict[str, str], work: Path) -> None:
        super().__init__(work)
        self.storage = storage
        self.name = f"folders/{uuid.uuid4().hex}"
        self.uri = f"{self.place}/{self.name}"

    @property
    def options(self) -> dict[str, str]:
        return {"path": self.uri, **{f"storage.{name}": value for name, value in self.storage.items()}}

    @property
    def store(self) -> ObjectStore:
        return open_store(self.uri, self.storage)

    def paths(self) -> list[str]:
        return [name.removeprefix(f"{self.name}/") for name in self._names()]

    @abstractmethod
    def _names(self) -> list[str]: ...

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

    @contextmanager
    def losing(self, lost: Lost) -> Iterator[None]:
        """Lose the request that replaces the journal."""
        put, left = self.store_type._put, [lost]

        def lossy_put(store: ObjectStore, path: str, content: bytes, **condition: object) -> str:
            if not left or not path.endswith(".journal"):
                return str(put(store, path, content, **condition))
            if left.pop() == "response":
                put(store, path, content, **condition)
            raise RetryableError("the connection was lost")

        with mock.patch.object(self.store_type, "_put", lossy_put):
            yield
        assert not left, "the journal was not replaced"

    @abstractmethod
    def put(self, path: str, content: bytes) -> None: ...

    @abstractmethod
    def delete(self, path: str) -> None: ...

    def append(self, row_id: int) -> None:
        self.folder.mkdir(exist_ok=True)
        super().append(row_id)
        name = f"others-{row_id}.{self.file_format}"
        self.put(name, (self.folder / name).read_bytes())

    def drop(self) -> None:
        for path in self.paths():
            self.delete(path)
        self.delete_uncommitted()


# S3 ---------------------------------------------------------------------------------------------------


@lru_cache
def _client(storage: tuple[tuple[str, str], ...]) -> Any:
    return s3_client(dict(storage))


class S3FilesHarness(_RemoteFilesHarness):
    promises = replace(
        FilesHarness.promises,
        name="Folders of files on S3",
        payload="multipart uploads that are not completed",
        commit="the journal of the query is replaced; then the uploads it lists are completed one by one",
        token="an object for each query below the folder",
        shows_secrets_to_tasks=True,
    )
    secrets: ClassVar = {"storage.AWS_SECRET_ACCESS_KEY": SECRET}
    place = f"s3://{BUCKET}"
    store_type = Bucket
    steps: ClassVar = {"journal": "PUT .journal", "completion": "POST uploadId", "part": "PUT partNumber"}
    """Words in the request lines of each step, for `LossyProxy.spend`."""
    answers: ClassVar = {
        "missing": (404, "NoSuchUpload"),
        "exists": (412, "PreconditionFailed"),
        "outage": (500, ""),
    }
    """Status and code of answers to the completion of an upload."""
    rule = "lifecycle rule"
    """What deletes uploads that nobody completes."""

    @property
    def client(self) -> Any:
        return _client(tuple(self.storage.items()))

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.unreachable_port}"
        return {**self.secret_options, "storage.AWS_ENDPOINT_URL": url}

    @staticmethod
    def without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
        """The client does not wait between its retries."""
        monkeypatch.setattr(botocore.retries.standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)

    def _names(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [one["Key"] for one in listed.get("Contents", ())]

    def uploads(self) -> list[tuple[str, str]]:
        """Path and upload id of what is staged."""
        listed = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.name}/")
        found = listed.get("Uploads", ())
        return [(one["Key"].removeprefix(f"{self.name}/"), one["UploadId"]) for one in found]

    def uncommitted(self) -> Collection[str]:
        return {path for path, _ in self.uploads()}

    def delete_uncommitted(self) -> None:
        """As a lifecycle rule does."""
        for path, upload_id in self.uploads():
            self.client.abort_multipart_upload(**self._object(path), UploadId=upload_id)

    def put(self, path: str, content: bytes) -> None:
        self.client.put_object(**self._object(path), Body=content)

    def read(self, path: str) -> bytes:
        return self.client.get_object(**self._object(path))["Body"].read()

    def delete(self, path: str) -> None:
        self.client.delete_object(**self._object(path))

    def part_sizes(self, path: str, upload: Upload) -> list[int]:
        parts = self.client.list_parts(**self._object(path), UploadId=upload.upload_id)["Parts"]
        return [part["Size"] for part in parts]

    def answering(self, status: int, code: str) -> AbstractContextManager[None]:
        """Answer completions of uploads as another server would, without sending them."""

        def answer(request: Any, **_: Any) -> AWSResponse:
            raw = BytesIO(_error(code))
            raw.stream = lambda **_: iter([raw.getvalue()])  # type: ignore[attr-defined]
            return AWSResponse(request.url, status, {}, raw)

        return self._on("before-send.s3.CompleteMultipartUpload", answer)

    def ignoring(self, header: str, operation: str) -> AbstractContextManager[None]:
        """Send the requests of an operation without a header."""

        def ignore(request: Any, **_: Any) -> None:
            del request.headers[header]

        return self._on(f"before-sign.s3.{operation}", ignore)

    @contextmanager
    def _on(self, event: str, handler: Callable[..., object]) -> Iterator[None]:
        events = open_bucket(self.uri, self.storage)._client.meta.events
        events.register(event, handler)
        try:
            yield
        finally:
            events.unregister(event, handler)

    def _object(self, path: str) -> dict[str, str]:
        return {"Bucket": BUCKET, "Key": f"{self.name}/{path}"}


# Azure ------------------------------------------------------------------------------------------------


class AzureFilesHarness(_RemoteFilesHarness):
    promises = replace(
        FilesHarness.promises,
        name="Folders of files on Azure",
        payload="blocks that are not committed; Azure deletes those of lost attempts after 7 days",
        commit="the journal of the query is replaced; then the block lists it names are committed one by one",
        token="a blob for each query below the folder",
        shows_secrets_to_tasks=True,
        discards=False,
    )
    secrets: ClassVar = {"storage.AZURE_STORAGE_CLIENT_SECRET": SECRET}
    """Not the key, which must be the right one."""
    place = f"az://{CONTAINER}"
    store_type = Container
    steps: ClassVar = {"journal": "PUT .journal", "completion": "PUT comp=blocklist", "part": "PUT blockid"}
    answers: ClassVar = {
        "missing": (400, "InvalidBlockList"),
        "exists": (409, "BlobAlreadyExists"),
        "outage": (500, "InternalError"),
    }
    rule = "after 7 days"

    def __init__(self, url: str, work: Path) -> None:
        super().__init__({name.upper(): value for name, value in azure_options(url).items()}, work)
        self.url = url

    @property
    def client(self) -> ContainerClient:
        return azure_client(self.url)

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.unreachable_port}/{ACCOUNT}"
        options = {**self.options, "storage.AZURE_STORAGE_ENDPOINT": url}
        del options["storage.AZURE_STORAGE_ACCOUNT_KEY"]
        return {**options, "storage.AZURE_STORAGE_SAS_TOKEN": f"sv=2022-11-02&sr=c&sig={SECRET}"}

    @staticmethod
    def without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ExponentialRetry, "get_backoff_time", lambda *_: 0.0)

    def _names(self) -> list[str]:
        return azure_names(self.url, f"{self.name}/")

    def uncommitted(self) -> Collection[str]:
        blobs = self.client.list_blobs(f"{self.name}/", include=["uncommittedblobs"])
        return {blob.name.removeprefix(f"{self.name}/") for blob in blobs} - {*self.paths()}

    def delete_uncommitted(self) -> None:
        """As the service does after 7 days. Only a list that is committed discards blocks; readers see it."""
        for path in self.uncommitted():
            self.client.get_blob_client(f"{self.name}/{path}").commit_block_list([])
            self.delete(path)

    def put(self, path: str, content: bytes) -> None:
        self.client.upload_blob(f"{self.name}/{path}", content, overwrite=True)

    def read(self, path: str) -> bytes:
        return self.client.download_blob(f"{self.name}/{path}").readall()

    def delete(self, path: str) -> None:
        self.client.delete_blob(f"{self.name}/{path}")

    def part_sizes(self, path: str, upload: Upload) -> list[int]:
        blocks = self.client.get_blob_client(f"{self.name}/{path}").get_block_list("uncommitted")[1]
        return [block.size for block in blocks]

    @contextmanager
    def answering(self, status: int, code: str) -> Iterator[None]:
        send = HTTPAdapter.send

        def answer(adapter: HTTPAdapter, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
            if request.method != "PUT" or "comp=blocklist" not in request.url:
                return send(adapter, request, *args, **kwargs)
            response = requests.Response()
            response.status_code, response.request, response.url = status, request, request.url
            response.headers.update({"x-ms-error-code": code, "Content-Type": "application/xml"})
            response.raw = BytesIO(_error(code))
            return response

        with mock.patch.object(HTTPAdapter, "send", answer):
            yield

    @contextmanager
    def ignoring(self, header: str, operation: str) -> Iterator[None]:
        on_request = StorageRequestHook.on_request

        def ignore(hook: StorageRequestHook, request: Any) -> None:
            is_list = request.http_request.query.get("comp") == "blocklist"
            if request.http_request.method == "PUT" and is_list == (operation == "Put Block List"):
                request.http_request.headers.pop(header, None)
            on_request(hook, request)

        with mock.patch.object(StorageRequestHook, "on_request", ignore):
            yield


RemoteFilesHarness: TypeAlias = S3FilesHarness | AzureFilesHarness


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
