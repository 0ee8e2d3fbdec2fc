"""Credentials for S3 from options and environment: the same for the Delta library and for `obstore`."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock
from urllib.request import urlopen

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.store import ObjectStore
from servers.lossy_proxy import lossy_proxy
from servers.request_log import RequestLog
from servers.s3 import BUCKET, logged_s3_server, s3_server
from werkzeug import Request, Response
from werkzeug.serving import make_server

from penstock.committers.delta.files import delta_files
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.delta.probing import storage_probe
from penstock.committers.errors import AccessRefusedError, RetryableError

TOKEN = "a-token-of-the-pod"
KEY = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


class Server(NamedTuple):
    endpoint: str
    log: RequestLog


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with logged_s3_server(tmp_path_factory.mktemp("server")) as (options, log):
        yield Server(options["AWS_ENDPOINT_URL"], log)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> None:
    """No credentials at all, neither in the environment nor in a home."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


def object_store(uri: str, options: dict[str, str]) -> ObjectStore:
    store = open_object_store(uri, options)
    assert store is not None
    return store


@contextmanager
def serving(application: Callable[[Request], Response], is_https: bool = False) -> Iterator[str]:
    """A server of HTTP in a thread; its URL."""
    wsgi = Request.application(application)
    server = make_server("127.0.0.1", 0, wsgi, threaded=True, ssl_context="adhoc" if is_https else None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http{'s' if is_https else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The agent of a container or pod that hands out its role's credentials; how it was asked."""
    asked: list[str] = []

    def agent(request: Request) -> Response:
        asked.append(f"{request.path} {request.headers['Authorization']}")
        role = {"AccessKeyId": "role", "SecretAccessKey": "s", "Token": "t"}
        return Response(json.dumps({**role, "Expiration": "2100-01-01T00:00:00Z", "RoleArn": "r"}))

    token = tmp_path / "token"
    token.write_text(TOKEN)
    with serving(agent) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        yield asked


@pytest.fixture
def web_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> Iterator[list[str]]:
    """A pod's token for a role, and the service that takes it: moto's, which wants the call as a body."""
    asked: list[str] = []

    def service(request: Request) -> Response:
        asked.append(request.query_string.decode())
        with urlopen(server.endpoint, request.query_string) as answer:
            return Response(answer.read())

    token = tmp_path / "token"
    token.write_text(TOKEN)
    with serving(service, is_https=True) as url:
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/writer")
        monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "pod")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "true")
        yield asked


@pytest.mark.parametrize("who", ["container", "web_identity"])
def test_the_role_of_a_container_or_pod_is_taken(who: str, request: pytest.FixtureRequest) -> None:
    """Once for all requests of the process to the table, and in the same way as the library."""
    asked: list[str] = request.getfixturevalue(who)
    uri = f"s3://{BUCKET}/{uuid.uuid4()}"
    store = object_store(uri, {})
    store.put("a", b"1", mode="create")
    store.put("b", b"2", mode="create")
    assert bytes(store.get("a").bytes()) == b"1"
    assert len(asked) == 1
    assert TOKEN in asked[0]
    write_deltalake(uri, pa.table({"v": [1, 2]}))
    assert asked[1:] == asked[:1] * (len(asked) - 1) != []
    assert DeltaTable(uri).to_pyarrow_table()["v"].to_pylist() == [1, 2]


def test_files_are_deleted_with_one_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{BUCKET}/{uuid.uuid4()}"
    store = object_store(uri, {})
    names = [f"p=a%20b {number}/{odd}.parquet" for number in range(20) for odd in ("a b", "é%2F")]
    for name in [*names, "other.parquet"]:
        store.put(name, b"1")
    files = delta_files(uri, {})
    server.log.methods()
    assert files.delete([*names, "missing.parquet"]) == len(names)
    assert server.log.methods().count("POST") == 1
    assert [path for path, _, _ in files.walk()] == ["other.parquet"]
    assert files.delete(["missing.parquet"]) == 0


def test_files_that_cannot_be_deleted_are_named() -> None:
    with s3_server() as options, lossy_proxy(options["AWS_ENDPOINT_URL"]) as network:
        options = {**options, "AWS_ENDPOINT_URL": network.url, "max_retries": "0"}
        store = object_store(f"s3://{BUCKET}/t", options)
        store.put("a", b"1")
        network.spend("denied", on="POST")
        with pytest.raises(RetryableError, match=r"cannot be listed or checked.*storage\.\*"):
            delta_files(f"s3://{BUCKET}/t", options).delete(["a"])
        assert delta_files(f"s3://{BUCKET}/t", options).delete(["a"]) == 1


def test_a_key_comes_before_a_role(container: list[str]) -> None:
    store = object_store(f"s3://{BUCKET}/{uuid.uuid4()}", KEY)
    store.put("a", b"1")
    assert container == []


def test_a_key_comes_before_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "another")
    assert open_object_store("s3://lake/t", KEY) is not None


@pytest.mark.parametrize(
    "profile",
    [
        *("config", "credentials", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
        *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    ],
)
def test_a_profile_is_left_to_the_library(
    container: list[str], profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It overrides the role of a container, and this client does not support it."""
    if profile.startswith("AWS_"):
        monkeypatch.setenv(profile, "another")
    else:
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws" / profile).touch()
    assert open_object_store("s3://lake/t", {}) is None
    assert container == []


@pytest.mark.usefixtures("container")
def test_a_user_without_a_home_has_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    assert open_object_store("s3://lake/t", {}) is not None


def test_missing_credentials_are_left_to_the_library() -> None:
    assert open_object_store("s3://lake/t", {}) is None


@pytest.mark.parametrize(
    "option",
    [
        {"AWS_S3_LOCKING_PROVIDER": "dynamodb"},
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
        {"aws_copy_if_not_exists": "header: cf-copy-destination-if-none-match: *"},
        {"conditional_put": "disabled"},
        {"AWS_IAM_ROLE_ARN": "arn:aws:iam::123456789012:role/writer"},
        {"AWS_S3_ASSUME_ROLE_ARN": "arn:aws:iam::123456789012:role/writer"},
        {"an_option_of_tomorrow": "1"},
    ],
)
def test_what_only_the_library_knows_is_left_to_it(option: dict[str, str]) -> None:
    assert open_object_store("s3://lake/t", {**KEY, **option}) is None


def test_half_a_key_is_left_to_the_library() -> None:
    assert open_object_store("s3://lake/t", {"AWS_ACCESS_KEY_ID": "key"}) is None


@pytest.mark.parametrize(
    "uri", ["gs://lake/t", "abfss://lake@account/t", "uc://catalog.schema.table", "/lake/t"]
)
def test_other_storages_are_left_to_the_library(uri: str) -> None:
    assert open_object_store(uri, KEY) is None


# Probes, for `penstock check` -------------------------------------------------------------------------


def test_a_probe_is_refused_a_second_time_and_leaves_nothing() -> None:
    uri = f"s3://{BUCKET}/{uuid.uuid4()}"
    probed = storage_probe(uri, KEY, "_delta_log").run("1")
    assert (probed.place, probed.is_conditional) == (f"{uri}/_delta_log", True)
    assert probed.written_at is not None
    assert abs((datetime.now(timezone.utc) - probed.written_at).total_seconds()) < 60
    assert list(object_store(uri, KEY).list()) == []


def test_a_probe_of_a_bucket_that_is_not_there_is_refused() -> None:
    with pytest.raises(AccessRefusedError, match="cannot be created in s3://no-lake/t"):
        storage_probe("s3://no-lake/t", KEY).run("1")
