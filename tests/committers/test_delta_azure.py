"""Credentials for Azure from options and environment: the same for the Delta library and for `obstore`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from servers.azure import ACCOUNT, CONTAINER, KEY, azure_names, azure_options
from servers.lossy_proxy import lossy_proxy, read_body
from tests.committers.test_delta_object_store import Handler, object_store, serving

from penstock.committers.delta.files import delta_files
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.files import TableFiles

pytestmark = pytest.mark.usefixtures("no_azure_credentials")

TOKEN = "a-token-of-the-pod"
SIGNATURE = "sv=2022-11-02&sr=c&sig=s%3D"
URI = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/t"


class Service:
    """An empty blob storage that issues tokens, and the requests that it got."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def take(self) -> set[str]:
        asked, self.asked = set(self.asked), []
        return asked


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service()

    class Blobs(Handler):
        def do_GET(self) -> None:
            self._note()
            self.answer(b"", status=404)

        def do_PUT(self) -> None:
            read_body(self)
            self._note()
            self.answer(b"", status=201)

        def do_POST(self) -> None:
            service.asked.append(f"{self.path} {read_body(self).decode()}")
            self.answer(json.dumps({"access_token": "token", "expires_in": 3600}).encode())

        def _note(self) -> None:
            signed = "sig=" + self.path.partition("sig=")[2] if "sig=" in self.path else ""
            service.asked.append(self.headers.get("Authorization", signed).partition(":")[0])

    with serving(Blobs) as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", url)
        yield service


KEY_OPTION = {"AZURE_STORAGE_ACCOUNT_KEY": KEY}
SIGNATURE_OPTION = {"azure_storage_sas_token": SIGNATURE}
PRINCIPAL = {"azure_tenant_id": "t", "azure_client_id": "writer", "azure_client_secret": "secret"}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (KEY_OPTION, [f"SharedKey {ACCOUNT}"]),
        ({"account_key": KEY}, [f"SharedKey {ACCOUNT}"]),
        (SIGNATURE_OPTION, ["sig=s%3D"]),
        (PRINCIPAL, ["/t/oauth2/v2.0/token client_id=writer&client_secret=secret", "Bearer token"]),
    ],
)
def test_both_clients_are_the_same_user(options: dict[str, str], asked: list[str], service: Service) -> None:
    check_both_clients(options, asked, service)


def test_a_pods_identity_is_used(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes configures it, by the environment alone."""
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("AZURE_TENANT_ID", "t")
    monkeypatch.setenv("AZURE_CLIENT_ID", "writer")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    check_both_clients({}, [f"client_assertion={TOKEN}", "Bearer token"], service)


def check_both_clients(options: dict[str, str], asked: list[str], service: Service) -> None:
    store = object_store(URI, options)
    store.put("a", b"1", mode="create")
    ours = service.take()
    with suppress(Exception):  # nothing is there
        write_deltalake(URI, pa.table({"v": [1]}), storage_options=options)
    theirs = service.take()
    assert ours == theirs
    assert len(ours) == len(asked)
    assert all(any(words in one for one in ours) for words in asked)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {**KEY_OPTION, **SIGNATURE_OPTION},
        {**KEY_OPTION, **PRINCIPAL},
        {**KEY_OPTION, "azure_storage_token": "token"},
        {**KEY_OPTION, "azure_credential_type": "azure_cli"},
        {"azure_msi_endpoint": "http://169.254.169.254/metadata/identity/oauth2/token"},
        {"azure_use_azure_cli": "true"},
        {**KEY_OPTION, "allow_unsafe_rename": "true"},
        {**KEY_OPTION, "an_option_of_tomorrow": "1"},
        {**KEY_OPTION, "max_retries": "some"},
    ],
)
def test_what_only_the_library_knows_is_left_to_it(options: dict[str, str]) -> None:
    """Also ambiguous credentials, where the two would choose differently."""
    assert open_object_store(URI, options) is None


def test_a_choice_with_the_environment_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    assert open_object_store(URI, {}) is not None
    assert open_object_store(URI, SIGNATURE_OPTION) is None


def test_options_of_http_are_taken_with_and_without_a_prefix(azure: str) -> None:
    options = azure_options(azure)
    del options["azure_allow_http"]
    for option in ("allow_http", "azure_allow_http", "AZURE_ALLOW_HTTP"):
        store = object_store(f"az://{CONTAINER}/{uuid.uuid4()}", {**options, option: "true", "timeout": "9s"})
        assert store.put("a", b"1", mode="create")["e_tag"]


def test_files_are_deleted_even_if_one_is_missing(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = str(uuid.uuid4())
    uri, options = f"az://{CONTAINER}/{prefix}", azure_options(azure)
    store = object_store(uri, options)
    names = [f"p=a%20b {number}/é%2F.parquet" for number in range(300)]
    for name in [*names, "other.parquet"]:
        store.put(name, b"1")
    files = delta_files(uri, options)
    assert files.missing([*names, "missing.parquet"]) == ["missing.parquet"]

    with monkeypatch.context() as patch:  # deleted just after the listing
        patch.setattr(TableFiles, "_there", lambda _, paths: set(paths))
        files.delete(["missing.parquet", *names])

    assert azure_names(azure, prefix) == [f"{prefix}/other.parquet"]
    assert files.delete(["missing.parquet"]) == 0


def test_an_error_shows_no_signature(azure: str) -> None:
    with lossy_proxy(azure) as network:
        options: dict[str, Any] = {**azure_options(network.url), **SIGNATURE_OPTION, "max_retries": "0"}
        del options["azure_storage_account_key"]
        with pytest.raises(RetryableError, match=r"cannot be listed or checked.*storage\.\*") as raised:
            delta_files(f"az://{CONTAINER}/t", options).delete(["a"])
    assert "s%3D" not in str(raised.value)
