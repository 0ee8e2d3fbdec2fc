"""The store that a command works on."""

from __future__ import annotations

import posixpath
from pathlib import Path

from ..committers.errors import ConfigurationError
from ..committers.store.sql import SqlManifestStore, open_store, sqlite_url
from ..datasource.checkpoint import STORE_FILE
from ..writers.local_path import local_path


def open_named_store(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    """The store of a checkpoint directory, or the one at a URL. It must be there.

    Raises:
        ConfigurationError: not exactly one of the two is given, or there is no store.
    """
    return open_store(url_of_store(checkpoint, store), must_exist=True)


def url_of_store(checkpoint: str | None, store: str | None) -> str:
    """The URL of the store of a checkpoint directory, or the one that is given.

    Raises:
        ConfigurationError: not exactly one of the two is given, or the directory has no store.
    """
    if (checkpoint is None) == (store is None):
        raise ConfigurationError(
            "Say where the manifest store is: with either --checkpoint DIR (the checkpoint of the query) "
            "or --store URL (the query's option `store`)" + ("." if store is None else ", not with both.")
        )
    return store or _store_in(checkpoint or "")


def _store_in(checkpoint: str) -> str:
    directory = local_checkpoint(checkpoint)
    path = posixpath.join(directory, STORE_FILE)
    if not Path(path).is_file():
        raise ConfigurationError(
            f"There is no manifest store {STORE_FILE} in {directory}. If the query has the option `store`, "
            "give its value with --store; otherwise check the directory."
        )
    return sqlite_url(path)


def local_checkpoint(checkpoint: str) -> str:
    """The path of a checkpoint directory on the local disk.

    Raises:
        ConfigurationError: it is not there, or not local.
    """
    directory = local_path(checkpoint)
    if directory is None:
        raise ConfigurationError(
            f"{checkpoint} is not on a local disk. Give the query's option `store` with --store instead."
        )
    if not Path(directory).is_dir():
        raise ConfigurationError(f"There is no checkpoint directory {directory}.")
    return directory
