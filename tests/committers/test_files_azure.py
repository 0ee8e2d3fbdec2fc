"""Folders of files on Azure: accounts, credentials, and signatures that no message shows."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from servers.azure import ACCOUNT, CONTAINER, KEY, azure_options
from tests.support.files_remote import AzureFilesHarness

from penstock.committers.errors import AccessRefusedError, ConfigurationError, RetryableError
from penstock.committers.files.azure_account import azure_account
from penstock.committers.files.object_folder import open_store
from penstock.committers.files.object_store import ConditionError
from penstock.committers.files.staged import Upload

pytestmark = pytest.mark.usefixtures("no_azure_credentials")

KEY_OPTION = {"AZURE_STORAGE_ACCOUNT_KEY": KEY}
SIGNATURE = {"AZURE_STORAGE_SAS_TOKEN": "?sv=1&sig=s%3D"}
PRINCIPAL = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "writer", "AZURE_CLIENT_SECRET": "secret"}


@pytest.mark.parametrize(
    ("uri", "options", "endpoint"),
    [
        ("abfss://lake@one.dfs.core.windows.net/t/u", {}, "https://one.blob.core.windows.net"),
        ("abfs://lake@one.blob.core.windows.net/t/u", {}, "https://one.blob.core.windows.net"),
        ("az://lake/t/u", {"AZURE_STORAGE_ACCOUNT_NAME": "one"}, "https://one.blob.core.windows.net"),
        ("azure://lake/t/u", {"account_name": "one", "azure_endpoint": "http://h/one"}, "http://h/one"),
    ],
)
def test_the_account_is_in_the_url_or_in_the_options(
    uri: str, options: dict[str, str], endpoint: str
) -> None:
    account, container, prefix = azure_account(uri, options)
    assert (account.name, account.endpoint, container, prefix) == ("one", endpoint, "lake", "t/u")


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("az://lake/t", {}),
        ("az://lake/t", {"account_name": "evil.example#"}),
        ("abfss://lake@one.dfs.core.windows.net.example/t", {}),
    ],
)
def test_an_address_that_is_not_one_of_azure_is_refused(uri: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"must have a host|needs the name of a storage account"):
        open_store(uri, {**KEY_OPTION, **options})


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (KEY_OPTION, AzureNamedKeyCredential),
        ({"azure_storage_access_key": KEY}, AzureNamedKeyCredential),
        (SIGNATURE, AzureSasCredential),
        (PRINCIPAL, ClientSecretCredential),
        ({"AZURE_CLIENT_ID": "an identity of the machine"}, DefaultAzureCredential),
        ({}, DefaultAzureCredential),
    ],
)
def test_credentials_are_those_of_the_options_else_of_the_environment(
    options: dict[str, str], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "abfss://lake@one.dfs.core.windows.net/t"
    assert type(azure_account(uri, options)[0].credential()) is kind
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)
    assert type(azure_account(uri, {})[0].credential()) is kind
    assert type(azure_account(uri, SIGNATURE)[0].credential()) is AzureSasCredential
    assert KEY not in repr(azure_account(uri, options))


def test_an_incomplete_service_principal_is_an_error_that_names_what_is_missing() -> None:
    account, _, _ = azure_account("az://lake/t", {"account_name": "one", "client_secret": "hunter2"})
    with pytest.raises(ConfigurationError, match=r"AZURE_STORAGE_TENANT_ID and .*CLIENT_ID must") as raised:
        account.credential()
    assert "hunter2" not in str(raised.value)


def test_a_signature_may_write_and_is_not_shown(azure: str) -> None:
    """It permits to read, write and list: the commit deletes nothing."""
    options = azure_options(azure)
    del options["azure_storage_account_key"]
    signature = generate_container_sas(
        ACCOUNT,
        CONTAINER,
        account_key=KEY,
        permission=ContainerSasPermissions(read=True, write=True, list=True),
        expiry=datetime.now(timezone.utc) + timedelta(hours=1),
    )
    uri = f"az://{CONTAINER}/{uuid.uuid4()}"
    store = open_store(uri, {**options, "azure_storage_sas_token": signature})
    etag = store.create("_penstock/q.journal", b"1")
    store.replace("_penstock/q.journal", b"2", etag)
    with pytest.raises(ConditionError):
        store.replace("_penstock/q.journal", b"3", etag)
    upload_id = store.create_upload("day=a b/é.json", "nonce")
    upload = Upload(upload_id, "nonce", (store.upload_part("day=a b/é.json", upload_id, 1, b"{}"),))
    assert store.has_upload("day=a b/é.json", upload)
    store.complete("day=a b/é.json", upload)
    assert sorted(store.paths()) == ["_penstock/q.journal", "day=a b/é.json"]
    assert store.nonce("day=a b/é.json") == "nonce"

    wrong = open_store(uri, {**options, "azure_storage_sas_token": signature.replace("sig=", "sig=c2VjcmV0")})
    with pytest.raises(AccessRefusedError, match="could not be listed") as raised:
        list(wrong.paths())
    assert "c2VjcmV0" not in str(raised.value)


def test_an_outage_and_a_missing_container_are_told_apart(
    azure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    AzureFilesHarness.without_delays(monkeypatch)
    closed = open_store(f"az://{CONTAINER}/t", azure_options("http://127.0.0.1:1"))
    missing = open_store("az://nothing-there/t", azure_options(azure))
    for store, error in ((closed, RetryableError), (missing, AccessRefusedError)):
        with pytest.raises(RetryableError) as raised:
            store.get("a")
        assert type(raised.value) is error
