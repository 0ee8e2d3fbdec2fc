"""Locations that no later attempt could use: a file in place of a folder, refused plain HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...committers.errors import shown
from ...writers.local_path import local_path

_FOLDERS = {"path": "path", "warehouse": "warehouse", "row_log": "rowLog"}
"""Options by their field."""
_TRUE = ("1", "true", "on", "yes", "y")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "ENDPOINT_URL", "ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "ENDPOINT"),
}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_SCHEMES = {"s3": "s3", "s3a": "s3", "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}


def problems_of_folders(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of folders on the local disk that are files, or are below a file."""
    for field, name in _FOLDERS.items():
        local = local_path(values.get(field) or "s3://")
        file = None if local is None else _first_existing(Path(local))
        if file is not None and not file.is_dir():
            yield f"{name}: {shown(str(file))} is a file, not a folder. Give another folder."


def _first_existing(path: Path) -> Path | None:
    """Return the path or its first parent that exists; None if that cannot be found out."""
    try:
        return next((one for one in (path, *path.parents) if one.exists()), None)
    except OSError:
        return None


def problems_of_plain_http(values: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    """Return the problem of an endpoint with `http://`, which the client of S3 and Azure refuses by default.

    Args:
        fields: those of locations that this client opens, the one of deltalake, Lance and obstore
    """
    locations = [str(values.get(field) or "") for field in fields]
    stores = {_SCHEMES[scheme] for one in locations if (scheme := one.partition("://")[0]) in _SCHEMES}
    given = {key.upper(): value for key, value in values.get("storage_options", {}).items()}
    problems = []
    for store in sorted(stores):
        allow = _ALLOW_HTTP[store]
        allowed = [given.get("ALLOW_HTTP"), given.get(allow, os.environ.get(allow))]
        if store == "az":
            emulator = ("AZURE_STORAGE_USE_EMULATOR", "USE_EMULATOR")
            allowed += [given.get(name, os.environ.get(name)) for name in emulator]
        endpoints = [
            (name, source[name])
            for source in (given, os.environ)
            for name in _ENDPOINTS[store]
            if name in source
        ]
        name, endpoint = endpoints[0] if endpoints else ("", "")
        is_http = endpoint.strip().lower().startswith("http://")
        if is_http and not any(one.strip().lower() in _TRUE for one in allowed if one):
            problems.append(
                f"storage.{name} has http://, which is refused by default, because rows would be sent in "
                f'clear text. Give an endpoint with https://, or .option("storage.{allow}", "true").'
            )
    return problems
