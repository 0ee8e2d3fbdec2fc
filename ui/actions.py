"""What an operator does in the page: the same as the commands with these names do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..committers.errors import ConfigurationError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.stored.table_access import TableAccess
from ..operating import dead_letters
from ..operating.admin import check_skippable, skip_batch
from ..operating.recovery import recover_stream
from ..operating.skipping import place_of_saved


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """What an operator has asked for."""

    stream: StreamStatus
    who: str
    reason: str
    batch_id: int | None = None

    def needed_reason(self) -> str:
        if not self.reason.strip():
            raise ConfigurationError("Give a reason: the store keeps it with the decision.")
        return self.reason


def run(store: SqlManifestStore, access: TableAccess, action: str, request: ActionRequest) -> bool:
    """Do it. Return False if there was nothing to do.

    Raises:
        ConfigurationError: there is no such action, or it is not possible now.
        PenstockError: a table or the store does not answer.
    """
    if action not in ACTIONS:
        raise ConfigurationError("There is no such action.")
    return ACTIONS[action](store, access, request)


def _retry(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    state = request.stream.delivery
    if state.parked_at is None and not state.tries:
        return False
    store.deliveries.retry(request.stream.key, request.who, request.reason)
    return True


def _park(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    store.deliveries.park(request.stream.key, request.who, request.needed_reason())
    return True


def _acknowledge(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    if not request.stream.skipped.unacknowledged:
        return False
    store.deliveries.acknowledge(request.stream.key, request.who, request.reason)
    return True


def _skip(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    why, stream = request.needed_reason(), request.stream
    if request.batch_id is None:
        raise ConfigurationError("Give the batch.")
    record = check_skippable(store, stream, request.batch_id, access)
    sink = place_of_saved(store, stream, access, None)
    skip_batch(store, stream, record, access, sink, request.who, why)
    return True


def _recover(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    recovered = recover_stream(store, request.stream, access)
    if recovered.error is not None:
        raise recovered.error
    return bool(recovered.batches)


def _resend(store: SqlManifestStore, access: TableAccess, request: ActionRequest) -> bool:
    found = dead_letters.load(store, request.stream, access, only_table=True)
    with dead_letters.resending(store, request.stream, access) as resends:
        found = replace(found, resends=resends)
        letters = dead_letters.to_send(found, dead_letters.Wanted())
        if letters.num_rows:
            dead_letters.send_again(store, found, letters, access)
    return bool(letters.num_rows)


Action = Callable[[SqlManifestStore, TableAccess, ActionRequest], bool]
ACTIONS: Mapping[str, Action] = {
    "retry": _retry,
    "park": _park,
    "acknowledge": _acknowledge,
    "skip": _skip,
    "recover": _recover,
    "resend": _resend,
}


def batch_in(form: Mapping[str, Any]) -> int | None:
    """Return the batch id in a form."""
    text = str(form.get("batch", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
