"""Probes of locations that the Delta library's object store opens, or of local ones. See `probing`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..cleaning.deletion import local_root
from ..probing import CONTENT, Probe, filesystem_probe, local_probe
from .object_store import errors_of_the_system, open_object_store


def storage_probe(location: str, storage_options: Mapping[str, str], folder: str = "") -> Probe:
    """Return the probe of a location that the Delta library's object store opens, or of a local one.

    Args:
        location: a path or URL
        storage_options: in the Delta library's form
        folder: below the location, such as `_delta_log`
    """
    local = local_root(location)
    if local is not None:
        return local_probe(os.path.join(local, folder))  # noqa: PTH118
    place = f"{location.rstrip('/')}/{folder}".rstrip("/")
    prefix = f"{folder}/" if folder else ""
    store = open_object_store(location, {"max_retries": "1", **storage_options})
    if store is None:
        import pyarrow.fs as fs
        from deltalake.fs import DeltaStorageHandler

        handler = DeltaStorageHandler(location, dict(storage_options))
        return filesystem_probe(place, fs.PyFileSystem(handler), prefix)
    from obstore.exceptions import AlreadyExistsError

    opened: Any = store

    def create(name: str) -> bool:
        with errors_of_the_system():
            try:
                opened.put(f"{prefix}{name}", CONTENT, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def delete(name: str) -> None:
        with errors_of_the_system():
            opened.delete(f"{prefix}{name}")

    def written_at(name: str) -> datetime | None:
        with errors_of_the_system():
            found: datetime | None = opened.head(f"{prefix}{name}")["last_modified"]
        return found

    return Probe(place, create, delete, written_at)
