"""Loads a Hudi table: its properties, its timeline, its schema. Creates it if it does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice, takewhile

import pyarrow as pa

from .. import crash_points
from ..dry_runs import before_creating, in_dry_run
from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError
from ..file_tables.table_changes import check_same_id, dropped
from . import avro
from .commit_metadata import SCHEMA_KEY, empty_commit, extra_metadata
from .layout import LAYOUT_1, Layout
from .names import reservation
from .properties import LAYOUTS, PATH, HudiTable, NewHudiTable, layout_of, parse, render, table_of
from .schema import Record, avro_record, parse_record
from .storage import PAGE, HudiStorage
from .timeline import FIRST_INSTANT, Timeline, next_instant

KIND = "hudi"

_RESERVATIONS_MAX = 1000
_COMMITS_READ = 100
"""Commits that are searched for a schema; only commits by Hudi's tools may have none."""

_RECENT: dict[str, str] = {}
"""Of each table, the hundredth last commit that this process has seen: where the next listing may begin."""


class HudiTableFiles:
    """The table at one address. Runs on the driver and in the delivery process."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = table_uri
        self.storage = HudiStorage(table_uri, storage_options)
        self._layout: Layout | None = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """
        Raises:
            RetryableError: the storage cannot be reached now.
        """
        try:
            yield
        except OSError as error:
            raise retryable(error)(
                f"The Hudi table {self.uri} cannot be read: {error}. Nothing was committed. Check the path, "
                f"the storage.* options and that the storage is reachable. {NEXT_TRY}"
            ) from error

    def load(self) -> HudiTable | None:
        """None if it does not exist. Hudi's writers replace the properties, and leave a backup meanwhile.

        Raises:
            TableNotSupportedError: names what direct commits would violate.
            ConfigurationError: a library that this version of tables needs is missing.
            RetryableError: it cannot be read now.
        """
        properties = self._properties()
        if properties is None:
            return None
        table = table_of(properties, self.uri)
        if table.layout.has_completion_times:
            avro.check_library(self.uri)
        return table

    def _properties(self) -> Mapping[str, str] | None:
        with self.errors():
            content = self.storage.read(PATH) or self.storage.read(f"{PATH}.backup")
        if content is None:
            return None
        properties = parse(content.decode())
        self._layout = layout_of(properties)
        return properties

    def layout(self) -> Layout:
        """Return the layout of the timeline, as it was when the table was last loaded."""
        if self._layout is None:
            self._properties()
        return self._layout or LAYOUT_1

    def load_same(self, table_id: str) -> HudiTable:
        """
        Raises:
            TableChangedError: it was dropped or re-created.
        """
        table = self.load()
        name = f"Hudi table {self.uri}"
        if table is None:
            raise dropped(name)
        check_same_id(name, table.table_id, table_id)
        return table

    def create(self, rows: pa.Schema, new: NewHudiTable, *, allowed: bool, batch_id: int) -> None:
        """Create the table, unless another process has created it in the meantime.

        Raises:
            ConfigurationError: creation is disabled.
        """
        if not allowed:
            raise ConfigurationError(
                f"There is no Hudi table at {self.uri}, and createTable=false. Create the table, correct the "
                "path, or set createTable=true."
            )
        with self.errors():
            timelines = [Timeline.of(self.storage.names(one.folder), one) for one in LAYOUTS]
        if any(one.latest != FIRST_INSTANT for one in timelines):
            raise ConfigurationError(
                f"The Hudi table {self.uri} has a timeline, but no hoodie.properties. Nothing was written. "
                "Restore the file, or write another table."
            )
        before_creating(f"Hudi table {self.uri}")
        with self.errors():
            self.storage.create(PATH, render(new, avro_record(rows, new.name, meta=True)).encode())
        crash_points.reach("table.created", batch_id)

    def timeline(self) -> Timeline:
        """Return all of it, as it is after the last request.

        Archival deletes the oldest instants first, maybe between two pages. Then those that the first page
        had are left out, because later ones of the next page are missing.
        """
        layout = self.layout()
        with self.errors():
            names = self.storage.names(layout.folder)
            if len(names) > PAGE and not self.storage.is_local:
                oldest = next(self._instants_after(FIRST_INSTANT), "")
                names = [name for name in names if name >= oldest]
            return self._remembered(_timeline(tuple(names), layout))

    def recent_timeline(self, *instants: str) -> Timeline:
        """Return the timeline, maybe without instants between its beginning and its last hundred commits.

        On an object store, the number of requests then does not grow with the timeline. The first call of a
        process reads all.

        Args:
            instants: what the caller asks the timeline for. They are not left out, nor any later ones.
        """
        start = min([_RECENT.get(self.uri, ""), *instants])
        if self.storage.is_local or not start:
            return self.timeline()
        with self.errors():
            first = self._first_page()
            if len(first) < PAGE:
                return self._remembered(_timeline(first, self.layout()))
            last = tuple(self._instants_after(start))
            first = self._first_page()  # again: see `timeline`
        is_whole = first[-1:] > (start,)
        if is_whole or not Timeline.of(first).commits or not Timeline.of(last).commits:
            return self.timeline()  # others have changed it since this process has read it
        return self._remembered(_timeline((*first, *last), self.layout()))

    def _first_page(self) -> tuple[str, ...]:
        return tuple(islice(self._instants_after(FIRST_INSTANT), PAGE))

    def _instants_after(self, start: str) -> Iterator[str]:
        """Names in the timeline begin with digits, and are listed before all others but hidden ones."""
        return takewhile(
            lambda name: name[0].isdigit(), self.storage.names_after(self.layout().folder, start)
        )

    def _remembered(self, timeline: Timeline) -> Timeline:
        recent = timeline.commits[-_COMMITS_READ:]
        if recent:
            _RECENT[self.uri] = recent[0][0]
        return timeline

    def begin_timeline(self, table: HudiTable, schema: Record) -> None:
        """Make a first commit without files.

        Readers take files that are older than the first commit as committed. So a batch must not be the
        first one.
        """
        if in_dry_run():
            return
        instant = next_instant(FIRST_INSTANT, table_now(table))
        completion = next_instant(instant, table_now(table))
        with self.errors():
            self.storage.create(
                table.layout.completed(instant, completion), empty_commit(schema, table.layout)
            )

    def reserve_instant(self, table: HudiTable, timeline: Timeline) -> str:
        """Return an instant that no other batch of any stream gets."""
        instant = next_instant(timeline.latest, table_now(table))
        if in_dry_run():
            return instant
        with self.errors():
            for _ in range(_RESERVATIONS_MAX):
                if self.storage.create(reservation(instant)):
                    return instant
                instant = next_instant(instant, table_now(table))
        raise ConfigurationError(
            f"No free instant was found for the Hudi table {self.uri} after {instant}. Check the clocks of "
            "the machines that write it."
        )

    def schema(self, table: HudiTable, timeline: Timeline) -> Record | None:
        """Return the table's columns, without Hudi's own; None if it has no schema yet.

        Raises:
            TableNotSupportedError: a column has a type that Penstock does not write.
        """
        for _, name in reversed(timeline.commits[-_COMMITS_READ:]):
            with self.errors():
                content = self.storage.read(f"{timeline.layout.folder}/{name}") or b""
            if text := extra_metadata(content).get(SCHEMA_KEY):
                return parse_record(text, self.uri)
        return parse_record(table.create_schema, self.uri) if table.create_schema else None


@lru_cache(maxsize=4)
def _timeline(names: tuple[str, ...], layout: Layout) -> Timeline:
    """A batch lists the timeline seven times. To read thousands of names takes longer than to list them."""
    return Timeline.of(names, layout)


def table_now(table: HudiTable) -> datetime:
    """The time in the time zone of the table's instants."""
    return datetime.now(timezone.utc) if table.is_utc else datetime.now().astimezone()
