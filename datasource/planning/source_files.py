"""Finds a table that would be its own source: files that the stream reads are in the table's folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...committers.errors import ConfigurationError, shown
from ...writers.local_path import local_path
from ..options.stream import normalized_location

if TYPE_CHECKING:
    from ..sink import Destination


def check_apart_from_source(sinks: Iterable[Destination], files: Iterable[str]) -> None:
    """Check that no file of the batch's sources is in a folder that one of the sinks writes to.

    Such a stream would read the rows again that it has written, and the clean-up of the table may delete
    files of the source. Sources other than files do not tell what they read.

    Args:
        files: their locations, as in the checkpoint

    Raises:
        ConfigurationError: one is.
    """
    folders = {_resolved(location): option for sink in sinks for option, location in _folders(sink)}
    parents = {file.rpartition("/")[0]: file for file in files} if folders else {}
    for parent, file in parents.items():
        for folder, option in folders.items():
            if f"{_resolved(parent)}/".startswith(f"{folder}/"):
                raise ConfigurationError(
                    f"The stream reads the file {shown(file)}, which is in the folder {shown(folder)} of the "
                    f"option {option}: it would read again what it writes there. Nothing of this batch was "
                    f"written. Give another {option}, outside of the folders that the stream reads."
                )


def _folders(sink: Destination) -> Iterator[tuple[str, str]]:
    """Yield the options with the folders that the sink writes to."""
    options: Any = sink.options
    if path := getattr(options, "path", None):
        yield "path", path
    if row_log := getattr(options, "row_log", None):
        yield "rowLog", row_log
    if warehouse := getattr(options, "warehouse", None):
        name = sink.table_uri.rpartition(":")[2]  # other tables of the warehouse may well be the source
        yield "warehouse", f"{warehouse.rstrip('/')}/{name.replace('.', '/')}"


def _resolved(location: str) -> str:
    local = local_path(location)
    return normalized_location(location) if local is None else os.path.realpath(local)
