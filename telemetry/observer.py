"""What happens to a batch, told to its observers: OpenLineage, OpenTelemetry.

An observer is loaded only in processes of queries that have its option: in the planner process, in tasks, in
the commit process and in the delivery process. All that it does may fail without an effect on the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ..committers.contract import Batch
from ..committers.errors import check_installed
from ..committers.texts.safe_text import get_logger
from .sending import LAST_WAIT_S, WAIT_S

if TYPE_CHECKING:
    from ..committers.lineage import SourceRange

logger = get_logger(__name__)

Value: TypeAlias = "str | int | float"

OPENLINEAGE, OPENTELEMETRY = "openlineage", "opentelemetry"
_LIBRARIES = {
    OPENLINEAGE: ("lineageEvents=true needs", "openlineage-python", "openlineage.client", "driver"),
    OPENTELEMETRY: (
        "openTelemetry=true needs",
        "opentelemetry-sdk",
        "opentelemetry.sdk",
        "driver and the executors",
    ),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """What the observers need to know of a query. Travels with the plan to the tasks, and with their messages
    to the commit. Contains no secrets.
    """

    observers: tuple[str, ...]
    query_name: str = ""
    began_at: float = 0.0
    """When the planning of the batch began, in seconds of Unix time."""
    traceparent: str = ""
    """W3C trace context of the batch; empty without OpenTelemetry."""
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types of the rows of the query; empty if they are not known here."""
    source_folders: tuple[str, ...] = ()
    """From where a batch of files is read."""
    kafka: str = ""
    """Namespace of the Kafka topics that the query reads."""

    @property
    def in_tasks(self) -> Observed | None:
        """The same with the observers of tasks, whose libraries executors need; None if there are none."""
        names = tuple(name for name in self.observers if name == OPENTELEMETRY)
        return replace(self, observers=names) if names else None


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of one target, or a delivery of several batches."""

    query: Observed
    batches: tuple[Batch, ...]
    kind: str
    """Of the destination."""
    delivery_id: int | None = None
    """None: a batch."""
    sources: tuple[SourceRange, ...] = ()
    is_committed: bool = False
    """True: the table has the rows. False: they are prepared, or there are none yet."""
    table_version: int | None = None
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    seconds: float = 0.0
    trigger: str = ""
    """Of a delivery."""

    @property
    def batch(self) -> Batch:
        return self.batches[-1]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the work on a batch, after it has ended."""

    name: str
    """`batch` for all of it; `plan`, `write`, `prepare`, `commit`, `deliver`."""
    query: Observed
    batch: Batch
    began_at: float
    ended_at: float
    error: str = ""
    """Empty if it has succeeded."""
    values: Mapping[str, Value] = field(default_factory=dict)


class Observer:
    """Base of observers. Its methods do nothing. They return at once, and may be called in any thread."""

    def traceparent(self, batch: Batch) -> str:
        """Return the W3C trace context of a batch, the same in each process."""
        return ""

    def on_start(self, run: Run) -> None:
        """A batch will be written; a delivery is prepared. Called again after a crash."""

    def on_complete(self, run: Run) -> None:
        """A batch is prepared or committed; a delivery is committed. Called again after a crash."""

    def on_fail(self, run: Run, error: str) -> None:
        """A batch has failed; a delivery is parked. It may be tried again."""

    def on_step(self, step: Step) -> None: ...

    def on_failed_attempt(self, run: Run) -> None:
        """A delivery has failed, and is tried again or parked."""

    def wait(self, wait_s: float) -> None:
        """Wait until everything is sent, but only a collector that has not been slow or failing."""


_LOADING = threading.Lock()
_reported: set[str] = set()


def check_observers(names: tuple[str, ...]) -> None:
    """
    Raises:
        ConfigurationError: the package of an observer is not installed. Names the option and the extra.
    """
    for name in names:
        needs, package, module, where = _LIBRARIES[name]
        check_installed(needs, package, f"penstock[{name}]", module=module, where=where)


def _observer(name: str) -> Observer:
    """Return the observer of this process."""
    with _LOADING:
        return _loaded(name)


@cache
def _loaded(name: str) -> Observer:
    try:
        loaded: Observer = import_module(f".{name}", __package__).observer()
    except Exception as error:  # noqa: BLE001  telemetry never fails a batch
        logger.warning("%s is off in this process: %s: %s", name, type(error).__name__, error)
        return Observer()
    return loaded


class Observers:
    """The observers of a query in this process.

    Args:
        query: None if it has none
    """

    def __init__(self, query: Observed | None) -> None:
        self._query = query
        self._observers = [] if query is None else [_observer(name) for name in query.observers]

    def traceparent(self, batch: Batch) -> str:
        found: list[str] = []
        self._tell(lambda one: found.append(one.traceparent(batch)))
        return "".join(found)

    def on_start(self, run: Run) -> None:
        self._tell(lambda one: one.on_start(run))

    def on_complete(self, run: Run) -> None:
        self._tell(lambda one: one.on_complete(run))

    def on_fail(self, run: Run, error: str) -> None:
        self._tell(lambda one: one.on_fail(run, error))

    def on_failed_attempt(self, run: Run) -> None:
        self._tell(lambda one: one.on_failed_attempt(run))

    def on_step(self, step: Step) -> None:
        self._tell(lambda one: one.on_step(step))

    def step(
        self, name: str, batch: Batch, values: Mapping[str, Value] | None = None
    ) -> AbstractContextManager[None]:
        """Tell the observers of the block once it has ended."""
        query = self._query
        return nullcontext() if query is None else self._step(name, query, batch, values or {})

    @contextmanager
    def _step(self, name: str, query: Observed, batch: Batch, values: Mapping[str, Value]) -> Iterator[None]:
        began_at = time.time()
        try:
            yield
        except Exception as error:
            self.on_step(Step(name, query, batch, began_at, time.time(), error_text(error), values))
            raise
        self.on_step(Step(name, query, batch, began_at, time.time(), values=values))

    def wait(self, *, is_last: bool = False) -> None:
        """Wait a little until everything is sent.

        Args:
            is_last: Spark ends the process next
        """
        self._tell(lambda one: one.wait(LAST_WAIT_S if is_last else WAIT_S))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for one in self._observers:
            try:
                call(one)
            except Exception as error:  # noqa: BLE001  telemetry never fails a batch
                _report(type(one).__name__, f"{type(error).__name__}: {error}")


def _report(name: str, problem: str) -> None:
    """Log the first problem of an observer in a process."""
    if name not in _reported:
        _reported.add(name)
        logger.warning("%s: %s. The batch goes on without it. Logged once.", name, problem)


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
