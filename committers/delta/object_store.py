"""The object store of a Delta table, through `obstore`: S3 and Azure.

`obstore` is the Python binding of the client inside the Delta library. It accepts the same addresses and
options, and releases the GIL while it waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_Frozen: TypeAlias = tuple[tuple[str, str], ...]

_S3_SCHEMES = ("s3", "s3a")
AZURE_SCHEMES = ("abfs", "abfss", "adl", "az", "azure")


def open_object_store(table_uri: str, storage_options: Mapping[str, str]) -> ObjectStore | None:
    """The store with the table as its root; None if only the Delta library can open it.

    One per process, table and options, so that connections stay open between batches. Runs anywhere.

    Args:
        storage_options: in the Delta library's form; missing ones are taken from the environment
    """
    scheme = urlsplit(table_uri).scheme
    if scheme in _S3_SCHEMES:
        variables, knows = "AWS_", _has_s3_credentials
    elif scheme in AZURE_SCHEMES:
        variables, knows = "AZUR", _has_azure_credentials  # also for Azurite
    else:
        return None
    environment = {name: value for name, value in os.environ.items() if name.upper().startswith(variables)}
    configured = {name.lower() for name in (*storage_options, *environment)}
    if any(name.endswith(_OF_THE_LIBRARY) for name in configured) or not knows(configured):
        return None
    return _open(table_uri, _frozen(storage_options), _frozen(environment), os.getpid())


@contextmanager
def errors_of_the_system() -> Iterator[None]:
    """Convert errors of the client to file system errors, with the client's message but without its
    internals.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error).partition("\n\nDebug source")[0]) from None


# Does obstore resolve the same credentials as the Delta library? ------------------------------------

_OF_THE_LIBRARY = (
    "locking_provider",
    "unsafe_rename",
    "copy_if_not_exists",
    "conditional_put",
    "iam_role_arn",
    "iam_role_session_name",
    "assume_role_arn",
)
"""Suffixes of options that only the Delta library supports: other commit mechanisms, and assumed roles."""

_PROFILE = ("aws_profile", "aws_default_profile", "aws_config_file", "aws_shared_credentials_file")
_S3_CREDENTIALS = (
    "aws_access_key_id",
    "access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
)
"""Credential sources of this client, same as in the library: a key; the role of a pod or container."""

_AZURE_CREDENTIALS = (
    {"account_key", "access_key", "master_key"},
    {"sas_key", "sas_token"},
    {"client_secret"},
    {"federated_token_file"},
)
"""A key; a signature; a service principal; the identity of a pod."""
_OTHER_AZURE_CREDENTIALS = {
    *("token", "bearer_token", "credential_type", "use_azure_cli", "skip_signature"),
    *("msi_endpoint", "identity_endpoint", "msi_resource_id", "object_id"),
    *(
        "fabric_token_service_url",
        "fabric_workload_host",
        "fabric_session_token",
        "fabric_cluster_identifier",
    ),
}


def _has_s3_credentials(configured: set[str]) -> bool:
    """Return True if obstore would use the same credentials as the Delta library, given the option names.

    obstore supports neither profiles nor machine roles.
    """
    found = next((name for name in _S3_CREDENTIALS if name in configured), None)
    return found is not None and ("access_key" in found or not _has_profile(configured))


def _has_profile(configured: set[str]) -> bool:
    if not configured.isdisjoint(_PROFILE):
        return True
    try:
        folder = Path.home() / ".aws"
    except RuntimeError:  # the user of a container may have no home directory
        return False
    return (folder / "config").exists() or (folder / "credentials").exists()


def _has_azure_credentials(configured: set[str]) -> bool:
    """Return True if obstore would use the same credentials as the Delta library, given the option names.

    With several kinds of credentials, the two clients prefer different ones.
    """
    names = {name.removeprefix("azure_").removeprefix("storage_") for name in configured}
    kinds = sum(not kind.isdisjoint(names) for kind in _AZURE_CREDENTIALS)
    return kinds == 1 and names.isdisjoint(_OTHER_AZURE_CREDENTIALS)


# The client -------------------------------------------------------------------------------------------

_HTTP_OPTIONS = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
    *("randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
"""HTTP options. The library takes them among its other options, with or without the storage's prefix; this
client takes them separately.
"""


def _http_option(name: str) -> str | None:
    """The name of the option in this client; None for options of the storage."""
    short = name.lower().removeprefix("aws_").removeprefix("azure_")
    return short if short in _HTTP_OPTIONS else None


def _frozen(options: Mapping[str, str]) -> _Frozen:
    return tuple(sorted(options.items()))


@lru_cache(maxsize=16)
def _open(
    table_uri: str, storage_options: _Frozen, environment: _Frozen, _process: int
) -> ObjectStore | None:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    configured = (*environment, *storage_options)
    http: Any = {_http_option(name): value for name, value in configured if _http_option(name)}
    config: Any = {name.lower(): value for name, value in storage_options if not _http_option(name)}
    try:
        retry: Any = {"max_retries": int(config.pop("max_retries"))} if "max_retries" in config else {}
        return from_url(table_uri, config=config, client_options=http, retry_config=retry)
    except (BaseError, ValueError):  # for example an incomplete key: the library reports it
        return None
