"""The storage account of a folder on Azure, and its credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential

    Credential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | TokenCredential

_SYNONYMS = {
    "access_key": "account_key",
    "authority_id": "tenant_id",
    "master_key": "account_key",
    "sas_key": "sas_token",
}
_CREDENTIALS = ("account_key", "sas_token", "client_secret")
_OPTIONS = (*_CREDENTIALS, "account_name", "authority_host", "client_id", "endpoint", "tenant_id")
"""Names as in the Delta library, without `AZURE_` and `STORAGE_`."""
_HOST = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
_NAME = re.compile(r"[a-z0-9]{3,24}")


@dataclass(frozen=True, slots=True)
class AzureAccount:
    name: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Those of `_OPTIONS` that are configured."""

    @property
    def endpoint(self) -> str:
        """The URL of the Blob service."""
        return dict(self.options).get("endpoint") or f"https://{self.name}.blob.core.windows.net"

    def credential(self) -> Credential:
        """Return the key, the signature, the service principal, or what azure-identity finds, in this order.

        Raises:
            ConfigurationError: azure-identity is needed and not installed, or an option is missing.
        """
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        options = dict(self.options)
        if "account_key" in options:
            return AzureNamedKeyCredential(self.name, options["account_key"])
        if "sas_token" in options:
            return AzureSasCredential(options["sas_token"])
        return _identity(options)


def _identity(options: Mapping[str, str]) -> TokenCredential:
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential
    except ImportError:
        raise ConfigurationError(
            "Azure without an account key or a shared access signature needs azure-identity: "
            'pip install "penstock[files]".'
        ) from None
    authority = {"authority": options["authority_host"]} if "authority_host" in options else {}
    if "client_secret" not in options:
        own = {"managed_identity_client_id": options["client_id"]} if "client_id" in options else {}
        return DefaultAzureCredential(**own, **authority)
    missing = [name for name in ("tenant_id", "client_id") if name not in options]
    if missing:
        names = " and ".join([f"storage.AZURE_STORAGE_{name.upper()}" for name in missing])
        raise ConfigurationError(f"{names} must be set with the client secret of a service principal.")
    return ClientSecretCredential(
        options["tenant_id"], options["client_id"], options["client_secret"], **authority
    )


def account_in(authority: str) -> str:
    """Return the account of `container@account.dfs.core.windows.net`; empty if there is only the container.

    Raises:
        ValueError: the host is not one of Azure Storage. It would get the credentials.
    """
    _, _, host = authority.partition("@")
    found = _HOST.fullmatch(host)
    if host and found is None:
        raise ValueError(
            "must have a host like `account.dfs.core.windows.net`. For another cloud use "
            "`az://container/folder` and the option storage.AZURE_STORAGE_ENDPOINT"
        )
    return found[1] if found else ""


def azure_account(uri: str, storage_options: Mapping[str, str]) -> tuple[AzureAccount, str, str]:
    """Return the account, the container and the folder in it.

    Args:
        uri: `abfss://container@account.dfs.core.windows.net/folder` or `az://container/folder`
        storage_options: named as in the Delta library. What is missing comes from the environment; its
            credentials are ignored if the options have some.

    Raises:
        ConfigurationError: there is no account, or not one of Azure.
    """
    given = _named(storage_options)
    environment = _named({name: value for name, value in os.environ.items() if name.startswith("AZURE_")})
    if not given.keys().isdisjoint(_CREDENTIALS):
        environment = {name: value for name, value in environment.items() if name not in _CREDENTIALS}
    options = {**environment, **given}
    authority, _, prefix = uri.partition("://")[2].partition("/")
    try:
        name = account_in(authority) or options.get("account_name", "")
    except ValueError as error:
        raise ConfigurationError(f"{uri} {error}. Nothing was sent.") from None
    if not _NAME.fullmatch(name):  # it becomes part of the host that gets the credentials
        raise ConfigurationError(
            f"{uri} needs the name of a storage account: set storage.AZURE_STORAGE_ACCOUNT_NAME, 3 to 24 "
            "lowercase letters and digits, or use abfss://container@account.dfs.core.windows.net/folder."
        )
    return AzureAccount(name, tuple(sorted(options.items()))), authority.partition("@")[0], prefix


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The known options by their short names."""
    found = {}
    for name, value in options.items():
        short = name.lower().removeprefix("azure_").removeprefix("storage_")
        short = _SYNONYMS.get(short, short)
        if value and short in _OPTIONS:
            found[short] = value
    return found
