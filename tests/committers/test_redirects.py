"""No client of a catalog or an object store follows a redirect. For those of services, see `writers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from tests.support.answering import Answer, AnsweringServer, answering

from penstock.committers.errors import AccessRefusedError
from penstock.committers.files.bucket import open_bucket
from penstock.committers.files.container import open_container
from penstock.committers.iceberg.library.catalogs import open_library_catalog

S3 = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[AnsweringServer]:
    with answering() as server:
        yield server


@pytest.fixture(scope="module")
def server(elsewhere: AnsweringServer) -> Iterator[AnsweringServer]:
    with answering() as first:
        first.answer = Answer(status=307, headers={"Location": f"{elsewhere.url}/other"})
        yield first


def read_s3(url: str) -> object:
    return open_bucket("s3://bucket/t", {**S3, "AWS_ENDPOINT_URL": url}).get("a")


def write_s3(url: str) -> object:
    return open_bucket("s3://bucket/t", {**S3, "AWS_ENDPOINT_URL": url}).create("a", b"content")


def read_azure(url: str) -> object:
    return open_container("az://container/t", {**AZURE, "AZURE_STORAGE_ENDPOINT": url}).get("a")


def write_azure(url: str) -> object:
    return open_container("az://container/t", {**AZURE, "AZURE_STORAGE_ENDPOINT": url}).create(
        "a", b"content"
    )


def open_catalog(url: str) -> object:
    return open_library_catalog("c", {"type": "rest", "uri": url, "token": "secret"})


@pytest.mark.parametrize("send", [read_s3, write_s3, read_azure, write_azure, open_catalog])
def test_a_redirect_is_refused_and_not_followed(
    server: AnsweringServer, elsewhere: AnsweringServer, send: Callable[[str], object]
) -> None:
    with pytest.raises(AccessRefusedError, match=re.escape(f"redirects to {elsewhere.url}/other")):
        send(server.url)
    assert elsewhere.requests == []
