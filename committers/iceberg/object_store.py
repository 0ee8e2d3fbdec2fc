"""File systems of Iceberg tables in object stores: those of the Iceberg library, configured by its
properties.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ConfigurationError, shown

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem, S3FileSystem

AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
AZURE_DOMAINS = (
    ".core.windows.net",
    ".core.chinacloudapi.cn",
    ".core.usgovcloudapi.net",
    ".storage.azure.net",
    ".fabric.microsoft.com",
)
_AZURE_AUTHORITIES = {"adls.blob-storage-authority", "adls.dfs-storage-authority"}
IO_PREFIXES = ("s3.", "gcs.", "adls.", "abfs.", "hdfs.", "hf.", "client.")
"""Prefixes of the properties that configure how files are read and written."""

_Frozen: TypeAlias = tuple[tuple[str, str], ...]


def open_object_store(location: str, properties: Mapping[str, object]) -> tuple[FileSystem, str]:
    """Return the file system of the location, and its path in it. Runs anywhere.

    One per process and properties, so that connections stay open between batches.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    own = {name: str(value) for name, value in properties.items() if name.startswith(IO_PREFIXES)}
    scheme, netloc, path = PyArrowFileIO.parse_location(location, own)
    container, is_account, host = netloc.partition("@")
    if scheme in AZURE_SCHEMES and is_account:
        path = container + path.removeprefix(netloc)
        own = {**_of_azure(host, own), **own}
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))}
    return _open(scheme, netloc, _frozen(own), _frozen(environment), os.getpid()), path


def _of_azure(host: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Properties from the host `container@account.dfs.core.windows.net`, which pyiceberg takes for a
    container's name.

    Includes the signature that a catalog has returned for this account.

    Raises:
        ConfigurationError: the host does not belong to Azure. The store or table metadata may contain any
            host.
    """
    account, _, domain = host.partition(".")
    configured = {"adls.account-name": account}
    if domain:
        if not f".{domain}".endswith(AZURE_DOMAINS) and not properties.keys() >= _AZURE_AUTHORITIES:
            raise ConfigurationError(
                f"A location is on the host {shown(host)}, which does not belong to Azure and would receive "
                "Azure credentials. Nothing was sent. If the host is right, set it with "
                "catalog.adls.blob-storage-authority and catalog.adls.dfs-storage-authority."
            )
        configured["adls.blob-storage-authority"] = "." + domain.replace("dfs.", "blob.", 1)
        configured["adls.dfs-storage-authority"] = "." + domain.replace("blob.", "dfs.", 1)
    for name in (f"adls.sas-token.{host}", f"adls.sas-token.{account}"):
        if name in properties:
            configured["adls.sas-token"] = properties[name]
    return configured


def _frozen(properties: Mapping[str, str]) -> _Frozen:
    return tuple(sorted(properties.items()))


@lru_cache(maxsize=16)
def _open(scheme: str, netloc: str, properties: _Frozen, _environment: _Frozen, _process: int) -> FileSystem:
    from pyarrow.fs import S3FileSystem
    from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
    from pyiceberg.io.pyarrow import PyArrowFileIO

    filesystem = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    if isinstance(filesystem, S3FileSystem) and S3_RETRY_STRATEGY_IMPL not in dict(properties):
        return _with_fewer_requests(filesystem)
    return filesystem


def _with_fewer_requests(filesystem: S3FileSystem) -> FileSystem:
    """The same file system with Arrow options that the Iceberg library has no properties for.

    A file smaller than one part then takes one request instead of three, and the number of parts in memory is
    limited. All options that pickle keeps are kept; a retry strategy is not.
    """
    make, (options,) = filesystem.__reduce__()
    if "allow_delayed_open" in options:
        options["allow_delayed_open"] = True
    options["background_writes"] = False
    copy: FileSystem = make(options)
    return copy
