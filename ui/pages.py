"""The pages that only read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..committers.contract import StreamKey
from ..committers.errors import PenstockError
from ..committers.store.listing import Sort, StreamFilter, StreamState
from ..datasource.destinations import files_of
from ..operating import dead_letters
from ..operating.batch_rows import shown_rows
from ..operating.letter_rows import letter_rows
from ..operating.overview import details, find_stream, overview
from ..operating.records import BatchRecord
from ..operating.tables import table_contents, table_status
from . import views
from .charts import shares
from .commands import Commands
from .config import CurrentStore, UiConfig
from .rendering import Renderer

PAGE = 50
"""Streams of one page of the list."""
BATCHES, BATCHES_MAX = 25, 500
CHART_BATCHES = 120
LETTERS = 100
FILES = 50
ROWS = 20
MIB = 1024**2
SIZE_CLASSES = ((1, "below 1 MiB"), (16, "1 to 16 MiB"), (64, "16 to 64 MiB"), (256, "64 to 256 MiB"))

T = TypeVar("T")


def place_of(key: StreamKey) -> str:
    """Return the path of a stream's page. An address may contain any characters, so it is a hash."""
    return f"/streams/{quote(key.query_id, safe='')}/{target_id(key)}"


def target_id(key: StreamKey) -> str:
    return hashlib.sha256(key.table_uri.encode()).hexdigest()[:12]


class Pages:
    """Each method answers one path. Runs in threads, as the store and the tables block."""

    def __init__(self, config: UiConfig, store: CurrentStore, renderer: Renderer) -> None:
        self._config = config
        self._store = store
        self._render = renderer.page

    def streams(self, request: Request) -> Response:
        asked = request.query_params
        only = asked.get("only", "")
        wanted = StreamFilter(
            text=asked.get("q", "").strip()[:500],
            state=StreamState(only) if only in StreamState.__members__ else None,
            kind=asked.get("kind", ""),
            has_letters=only == "letters",
            has_skipped=only == "skipped",
        )
        sort = Sort(asked["sort"]) if asked.get("sort") in {one.value for one in Sort} else Sort.STATE
        number = _bounded(asked.get("page"), 1, 1_000_000, default=1)
        found = overview(self._store(), wanted, sort, (number - 1) * PAGE, PAGE)
        pages = max(-(-found.page.found // PAGE), 1)
        if number > pages:
            number = pages
            found = overview(self._store(), wanted, sort, (number - 1) * PAGE, PAGE)

        def link(**changed: object) -> str:
            given = {"q": wanted.text, "only": only, "kind": wanted.kind, "sort": sort.value, **changed}
            kept = {key: value for key, value in given.items() if value and (key, value) != ("sort", "state")}
            return f"/?{urlencode(kept)}" if kept else "/"

        return self._render(
            request,
            "streams.html",
            found=found,
            page=found.page,
            wanted=wanted,
            only=only,
            sort=sort.value,
            sorts=[one.value for one in Sort],
            number=number,
            pages=pages,
            first=(number - 1) * PAGE + 1,
            link=link,
            place_of=place_of,
        )

    def stream(self, request: Request, error: str = "", status_code: int = 200) -> Response:
        """The page of one stream.

        Args:
            error: of an action
        """
        store, key, now = self._store(), self.key(request), self._config.clock()
        limit = _bounded(request.query_params.get("batches"), 1, BATCHES_MAX, default=BATCHES)
        found = details(store, key, limit)
        commands = Commands(self._config.store_option, key, not found.others)
        return self._render(
            request,
            "stream.html",
            status_code,
            error=error,
            done=DONE.get(request.query_params.get("done", ""), ""),
            found=found,
            stream=found.record,
            status=found.status,
            problems=views.problems(found, commands, now),
            batches=views.batch_rows(found, now),
            deliveries=views.delivery_rows(found, now),
            charts=views.charts(found, store.history(key, CHART_BATCHES), now),
            commands=commands,
            limit=limit,
            more=min(limit * 4, BATCHES_MAX),
            place=place_of(key),
            place_of=place_of,
        )

    def table(self, request: Request) -> Response:
        """The table of a stream, which is read for it."""
        store, key = self._store(), self.key(request)
        stream, access = find_stream(store, key), self._config.access
        status, problem = _tried(lambda: table_status(store, stream, access))
        contents, unread = _tried(lambda: table_contents(stream, access)) if not problem else (None, "")
        classes = _size_classes(contents.sizes) if contents is not None else []
        return self._render(
            request,
            "table.html",
            stream=stream,
            commands=Commands(self._config.store_option, key, len(store.streams_of(key.query_id)) == 1),
            place=place_of(key),
            table=status,
            contents=contents,
            classes=shares(classes),
            problem=problem or unread,
        )

    def letters(self, request: Request) -> Response:
        """The dead letters of a stream. Reads its dead-letter table."""
        store, key = self._store(), self.key(request)
        stream = find_stream(store, key)
        found = dead_letters.load(store, stream, self._config.access)
        rows = letter_rows(store, found)
        can_send = found.delivered is not None and any(row["state"] == "delivered" for row in rows)
        return self._render(
            request,
            "letters.html",
            stream=stream,
            found=found,
            rows=rows[:LETTERS],
            more=max(len(rows) - LETTERS, 0),
            can_send=can_send,
            commands=Commands(self._config.store_option, key, len(store.streams_of(key.query_id)) == 1),
            place=place_of(key),
        )

    def batch(self, request: Request) -> Response:
        """One batch: its files and, if it waits, its rows."""
        store, key = self._store(), self.key(request)
        batch_id = int(request.path_params["batch"])
        stream, record = find_stream(store, key), store.record(key, batch_id)
        if record is None:
            raise HTTPException(404, f"The store has no batch {batch_id} of this stream.")
        manifest, damaged = _tried(lambda: store.manifest(key, batch_id))
        files, unknown = _tried(lambda: () if manifest is None else files_of(manifest))
        rows, unread = None, ""
        if record.finished_at is None and manifest is not None:
            there = manifest
            rows, unread = _tried(lambda: shown_rows(store, stream, record, there, self._config.access, ROWS))
        return self._render(
            request,
            "batch.html",
            stream=stream,
            batch=BatchRecord.of(stream, record),
            record=record,
            files=(files or ())[:FILES],
            more_files=max(len(files or ()) - FILES, 0),
            rows=rows,
            problem=damaged or unknown or unread,
            commands=Commands(self._config.store_option, key, len(store.streams_of(key.query_id)) == 1),
            place=place_of(key),
        )

    def key(self, request: Request) -> StreamKey:
        """Return the stream that a path names.

        Raises:
            HTTPException: there is none.
        """
        query_id, target = request.path_params["query_id"], request.path_params["target"]
        for key in self._store().streams_of(query_id):
            if target_id(key) == target:
                return key
        raise HTTPException(404, "The store has no such stream. It may have been retired.")


DONE = {
    "retry": "The deliveries are resumed. A running delivery process delivers the batches.",
    "park": "The stream is parked.",
    "skip": "The batch is given up. Its rows are among the dead letters, with the code skipped.",
    "acknowledge": "The skipped batches are acknowledged.",
    "recover": "The pending batches were committed.",
    "resend": "The dead letters were sent again.",
    "nothing": "There was nothing to do.",
}
"""What is shown after an action."""


def _bounded(text: str | None, lowest: int, highest: int, default: int) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return default
    return min(max(int(text), lowest), highest)


def _tried(read: Callable[[], T]) -> tuple[T | None, str]:
    """Return what can be read, or else the error."""
    try:
        return read(), ""
    except PenstockError as error:
        return None, str(error)


def _size_classes(sizes: Sequence[int]) -> list[tuple[str, int]]:
    counts = dict.fromkeys([*(name for _, name in SIZE_CLASSES), "256 MiB or more"], 0)
    for size in sizes:
        name = next((name for bound, name in SIZE_CLASSES if size < bound * MIB), "256 MiB or more")
        counts[name] += 1
    return list(counts.items())
