"""Files below a DuckLake's data path: on the local disk, or on S3 with the Delta library's options.

duckdb itself reads the footers of files on S3. It gets the same access key as the tasks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from ..delta.files import delta_files
from ..errors import ConfigurationError
from ..file_tables.files import TableFiles

S3 = "s3://"

DuckDbSecret: TypeAlias = tuple[tuple[str, str], ...]
"""Parameters of duckdb's `CREATE SECRET`."""

_PARAMETERS = {
    "ACCESS_KEY_ID": "KEY_ID",
    "SECRET_ACCESS_KEY": "SECRET",
    "SESSION_TOKEN": "SESSION_TOKEN",
    "TOKEN": "SESSION_TOKEN",
    "REGION": "REGION",
    "DEFAULT_REGION": "REGION",
}
_ENDPOINTS = ("ENDPOINT_URL", "ENDPOINT")


def is_on_s3(location: str) -> bool:
    return location.startswith(S3)


def duckdb_secret(storage_options: Mapping[str, str]) -> DuckDbSecret:
    """The access key in duckdb's form; empty if there is none.

    Args:
        storage_options: in the Delta library's form; missing ones are taken from the environment

    Raises:
        ConfigurationError: duckdb has no counterpart of an option.
    """
    environment = {name: value for name, value in os.environ.items() if name.upper().startswith("AWS_")}
    given = {
        name.upper().removeprefix("AWS_"): value
        for name, value in (*environment.items(), *storage_options.items())
    }
    found = {_PARAMETERS[name]: value for name, value in given.items() if name in _PARAMETERS}
    if not {"KEY_ID", "SECRET"} <= set(found):
        return ()
    endpoint = next((given[name] for name in _ENDPOINTS if given.get(name)), "")
    if endpoint:
        if given.get("VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1"):
            raise ConfigurationError(
                "penstock.ducklake does not support storage.AWS_VIRTUAL_HOSTED_STYLE_REQUEST with an "
                "endpoint. Remove it; the bucket is then part of the path."
            )
        url = urlsplit(endpoint)
        found |= {
            "ENDPOINT": (url.netloc + url.path).rstrip("/"),
            "URL_STYLE": "path",
            "USE_SSL": str(url.scheme != "http").lower(),
        }
    return tuple(sorted(found.items()))


def files_below(location: str, storage_options: Mapping[str, str]) -> TableFiles:
    """The files below a location."""
    if is_on_s3(location):
        return delta_files(location, storage_options)

    def open_location() -> pafs.FileSystem | None:
        is_there = Path(location).is_dir()
        return pafs.SubTreeFileSystem(location, pafs.LocalFileSystem()) if is_there else None

    return TableFiles(location, "the path", open_location, local=location)
