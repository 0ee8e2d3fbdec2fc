"""The file systems of Iceberg tables in object stores: the Iceberg library's own, by its properties."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem, S3FileSystem

IO_PREFIXES = ("s3.", "gcs.", "adls.", "abfs.", "hdfs.", "hf.", "client.")
"""Of the properties that say how files are read and written."""

_Frozen: TypeAlias = tuple[tuple[str, str], ...]


def open_object_store(scheme: str, netloc: str, properties: Mapping[str, object]) -> FileSystem:
    """The file system of locations with this beginning. Runs anywhere.

    One for each process and properties: connections stay open from batch to batch.
    """
    own = {name: str(value) for name, value in properties.items() if name.startswith(IO_PREFIXES)}
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return _open(scheme, netloc, _frozen(own), _frozen(environment), os.getpid())


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
    """The same, with options of Arrow's that the Iceberg library has no properties for.

    A file that is smaller than a part is one request then, not three; and of a larger one no more parts wait
    in memory than are told to. Options are those that pickle would keep: all but a retry strategy.
    """
    make, (options,) = filesystem.__reduce__()
    if "allow_delayed_open" in options:
        options["allow_delayed_open"] = True
    options["background_writes"] = False
    copy: FileSystem = make(options)
    return copy
