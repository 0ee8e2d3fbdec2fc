"""Finds row logs that are one place in two notations, such as `az://` and `abfss://`, or a link."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import TypeAlias

from ...committers.error_causes import retryable
from ...committers.errors import NEXT_TRY, ConfigurationError
from ...committers.row_log.log import RowLog
from ...writers.row_log.writer import RowLogWriters, accept_all

_Options: TypeAlias = tuple[tuple[str, str], ...]


def check_row_logs(writers: Mapping[str, RowLogWriters]) -> None:
    """Check that no two locations of row logs are the same place.

    A file is deleted when all targets whose row log has the same location have delivered it; others would
    lose its rows. Runs on the driver. Accesses the storages once in a process, and only if locations differ.

    Args:
        writers: those of each target that has a row log

    Raises:
        ConfigurationError: two locations are the same place.
        RetryableError: a row log cannot be written now.
    """
    by_location = {one.location: (name, one) for name, one in writers.items()}
    for (name, one), (other_name, other) in combinations(by_location.values(), 2):
        if _is_same_place(one.location, _options(one), other.location, _options(other)):
            raise ConfigurationError(
                f"target.{name}.rowLog={one.location} and target.{other_name}.rowLog={other.location} are "
                "the same place. The delivery of one target would delete files that the other one needs. "
                "Give both the same text, or another place to one of them."
            )


def _options(writers: RowLogWriters) -> _Options:
    return tuple(sorted(writers.storage_options.items()))


@lru_cache(maxsize=64)
def _is_same_place(location: str, options: _Options, other: str, other_options: _Options) -> bool:
    """Return True if a file that is written to one place is found in the other."""
    probe = f"penstock-probe-{uuid.uuid4()}"
    files = RowLogWriters(location, dict(options), accept_all).new_files()
    try:
        with files.open(probe) as stream:
            stream.write(probe.encode())
        files.finish()
        return not RowLog(other, dict(other_options)).files.missing([probe])
    except OSError as error:
        raise retryable(error)(
            f"The row logs {location} and {other} cannot be compared: {error}. No row was written. Check the "
            f"storage.* options and that the storage is reachable. {NEXT_TRY}"
        ) from error
    finally:
        files.delete_all()
