"""Find and open the store that a command works on."""

from __future__ import annotations

import posixpath
from pathlib import Path

from ..committers.errors import ConfigurationError, StoreMissingError
from ..committers.store.sql import SqlManifestStore, open_store, sqlite_url
from ..datasource.spark.checkpoint import STORE_FILE
from ..writers.local_path import local_path


def open_named_store(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    """Open the store of a checkpoint directory, or the one at a URL. It must exist.

    Raises:
        ConfigurationError: neither or both are given, or the store does not exist.
    """
    return open_store(url_of_store(checkpoint, store), must_exist=True)


def url_of_store(checkpoint: str | None, store: str | None) -> str:
    """Return the URL of the store of a checkpoint directory, or the given URL.

    Raises:
        ConfigurationError: neither or both are given.
        StoreMissingError: the directory has no store.
    """
    if (checkpoint is None) == (store is None):
        raise ConfigurationError(
            ("No manifest store is given. " if store is None else "Two manifest stores are given. ")
            + "Give either --checkpoint DIR (the checkpoint directory of the query, if the store is in it) "
            "or --store URL (the query's option `store`). A URL with a password can also be in "
            "$PENSTOCK_STORE or in the file of --options-file."
        )
    return store or _store_in(checkpoint or "")


def _store_in(checkpoint: str) -> str:
    directory = local_checkpoint(checkpoint)
    path = posixpath.join(directory, STORE_FILE)
    if not Path(path).is_file():
        raise StoreMissingError(
            f"There is no manifest store {STORE_FILE} in {directory}. Check the directory. If the query has "
            "the option `store`, give its value as --store URL."
        )
    return sqlite_url(path)


def local_checkpoint(checkpoint: str) -> str:
    """Return the path of a checkpoint directory on the local disk.

    Raises:
        ConfigurationError: the directory does not exist, or is not local.
    """
    directory = local_path(checkpoint)
    if directory is None:
        raise ConfigurationError(
            f"The checkpoint {checkpoint} is not on a local disk. Give the query's option `store` as --store "
            "URL."
        )
    if not Path(directory).is_dir():
        raise ConfigurationError(f"The checkpoint directory {directory} does not exist.")
    return directory
