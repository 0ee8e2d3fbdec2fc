"""`penstock retire`: what it checks, and how it prints what a stream has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..committers.errors import ConfigurationError, PenstockError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import one_line
from ..datasource.spark.checkpoint import STORE_FILE
from ..datasource.stored.table_access import TableAccess
from ..delivery.retiring import Leftovers, Retirement
from ..operating.admin import checkpoint_of
from ..operating.leases import held_lease
from . import output

_SHOWN = 20


@dataclass(slots=True)
class Retired:
    """What was found of a stream, or removed."""

    stream: StreamStatus
    left: Leftovers = field(default_factory=Leftovers)
    is_done: bool = False
    error: PenstockError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **output.stream_json(self.stream),
            "files": self.left.files,
            "records": self.left.records,
            "remains": self.left.remains,
            "retired": self.is_done,
            "error": None if self.error is None else str(self.error),
        }


def checked(
    store: SqlManifestStore, streams: Sequence[StreamStatus], access: TableAccess
) -> list[tuple[Retirement, str]]:
    """Return the retirements of the streams, each with the checkpoint that is to be deleted afterwards.

    Raises:
        ConfigurationError: a checkpoint exists, so that its query may continue.
        RetryableError: something of a stream is not finished.
    """
    retirements = []
    for stream in streams:
        retirement = Retirement(store, stream, access, held_lease)
        retirement.check()
        retirements.append((retirement, _checkpoint_left(store, stream, access)))
    return retirements


def _checkpoint_left(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> str:
    """Return the checkpoint that has the store in it; empty if the checkpoint is gone.

    Raises:
        ConfigurationError: it exists, and the store is elsewhere.
    """
    location, is_there = checkpoint_of(stream, access)
    own = _checkpoint_of_store(store)
    if own is not None and (not is_there or Path(location.removeprefix("file:")).resolve() == own):
        return str(own)
    if is_there:
        raise ConfigurationError(
            f"The checkpoint {location} of query {stream.key.query_id} still exists. If the query started "
            "again after its fence is removed, rows could arrive twice. Nothing was removed. Stop the query "
            "for good, delete its checkpoint, then repeat the command."
        )
    return ""


def _checkpoint_of_store(store: SqlManifestStore) -> Path | None:
    """Return the checkpoint that has this store in it; None if the store is elsewhere."""
    path = store.file
    if path is None or path.name != STORE_FILE or not (path.parent / "metadata").is_file():
        return None
    return path.parent.resolve()


def find(retirement: Retirement, checkpoint: str) -> Retired:
    """Return what a stream has left, with the error if that cannot be found out."""
    return _attempted(retirement, retirement.find, checkpoint)


def left_behind(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> str:
    """Say what a stream leaves in its destination if only the store forgets it."""
    found = find(Retirement(store, stream, access, held_lease), "")
    instead = f"penstock retire {stream.key.query_id}"
    if found.error is not None:
        return f"What it leaves behind there is unknown: {found.error} To remove it: {instead}"
    files = len(found.left.files)
    left = [f"{files:,} files or staging tables"] if files else []
    left += found.left.records
    if not left:
        return "It leaves nothing behind there but its rows."
    return f"It leaves behind: {', '.join(left)}. To remove them as well: {instead}"


def run(retirement: Retirement, checkpoint: str) -> Retired:
    """Retire a stream; return what was removed, with the error if it could not be retired."""
    retired = _attempted(retirement, retirement.run, checkpoint)
    retired.is_done = retired.error is None
    return retired


def _attempted(retirement: Retirement, step: Any, checkpoint: str) -> Retired:
    retired = Retired(retirement.stream)
    try:
        retired.left = step()
    except PenstockError as error:
        retired.error = error
    if checkpoint and retired.error is None:
        retired.left.remains.append(
            f"the checkpoint {checkpoint} with this store: delete it, so that the query cannot start again"
        )
    return retired


def print_left(retired: Retired, how: str, *, stderr: bool = False) -> None:
    """Print what a stream has left.

    Args:
        how: what is done with it, such as `removed`
    """
    left = retired.left
    output.print_line(
        f"{output.title(retired.stream)} -> {one_line(retired.stream.key.table_uri)}",
        style="bold",
        stderr=stderr,
    )
    if retired.error is not None:
        output.print_line("  Not complete: see the error.", stderr=stderr)
        return
    things = [*left.files, *left.records, "its batches, deliveries and decisions in the store"]
    for thing in things[:_SHOWN]:
        output.print_line(f"  {how}: {thing}", stderr=stderr)
    if len(things) > _SHOWN:
        output.print_line(f"  {how}: {len(things) - _SHOWN:,} more, see --json", stderr=stderr)
    for thing in left.remains:
        output.print_line(f"  stays: {thing}", stderr=stderr)
