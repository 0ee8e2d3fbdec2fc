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
from servers.lossy_proxy import lossy_proxy
from tests.committers.test_delta_object_store import object_store, serving
from werkzeug import Request, Response

from penstock.committers.delta.files import delta_files
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.files import TableFiles

pytestmark = pytest.mark.usefixtures("no_azure_credentials")

TOKEN = "a-token-of-the-pod"
SIGNATURE = "sv=2022-11-02&sr=c&sig=s%3D"
URI = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/t"


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Credentials in the requests to an empty blob storage, and requests for the tokens that it issues."""
    asked: set[str] = set()

    def blobs(request: Request) -> Response:
        if request.method == "POST":
            asked.add(f"{request.path} {request.get_data(as_text=True)}")
            return Response(json.dumps({"access_token": "token", "expires_in": 3600}))
        sent = request.environ["REQUEST_URI"]
        signed = "sig=" + sent.partition("sig=")[2] if "sig=" in sent else ""
        asked.add(request.headers.get("Authorization", signed).partition(":")[0])
        return Response(status=201 if request.method == "PUT" else 404, headers={"ETag": '"1"'})

    with serving(blobs) as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", url)
        yield asked


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
def test_both_clients_are_the_same_user(
    options: dict[str, str], asked: list[str], asked_for: set[str]
) -> None:
    check_both_clients(options, asked, asked_for)


def test_a_pods_identity_is_used(
    asked_for: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes configures it, by the environment alone."""
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("AZURE_TENANT_ID", "t")
    monkeypatch.setenv("AZURE_CLIENT_ID", "writer")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    check_both_clients({}, [f"client_assertion={TOKEN}", "Bearer token"], asked_for)


def check_both_clients(options: dict[str, str], asked: list[str], asked_for: set[str]) -> None:
    store = object_store(URI, options)
    store.put("a", b"1", mode="create")
    ours = set(asked_for)
    asked_for.clear()
    with suppress(Exception):  # nothing is there
        write_deltalake(URI, pa.table({"v": [1]}), storage_options=options)
    assert ours == asked_for
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
