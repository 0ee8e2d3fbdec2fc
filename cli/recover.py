"""`penstock recover`: its progress and its output."""

from __future__ import annotations

from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.stored.table_access import TableAccess
from ..operating import recovery
from ..operating.recovery import RecoveredStream
from . import output


def recover_stream(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> RecoveredStream:
    """See `recovery.recover_stream`; with its progress on stderr."""
    name = output.title(stream)
    with output.console(stderr=True).status(f"{name}: {stream.pending} batches") as progress:
        return recovery.recover_stream(
            store,
            stream,
            access,
            lambda done: progress.update(f"{name}: {done} of {stream.pending} batches"),
        )


def print_recoveries(recoveries: list[RecoveredStream]) -> None:
    if not recoveries:
        output.print_line("Nothing is pending.")
    for recovered in recoveries:
        output.print_line(f"{output.title(recovered.stream)}  {recovered.stream.key.table_uri}", style="bold")
        if recovered.batches:
            output.console().print(output.recovered_table(recovered.batches))


def recovered_json(recovered: RecoveredStream) -> dict[str, object]:
    batches = [output.recovered_json(batch) for batch in recovered.batches]
    error = None if recovered.error is None else str(recovered.error)
    return {**output.stream_json(recovered.stream), "batches": batches, "error": error}
