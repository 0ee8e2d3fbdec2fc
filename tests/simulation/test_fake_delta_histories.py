"""Random histories, lived through by the Delta library and by its fake: they must not tell them apart."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulation.delta_sides import (
    EPOCH,
    FakeSide,
    RealSide,
    Side,
    add_column,
    commit,
    create,
    drop,
    drop_old_entries,
    ending,
    history,
    log_of,
    open_table,
    set_times,
)

QUERIES = ("q", "r")

Step = tuple[Any, ...]
"""The name of a method of `TableHistory`, and its arguments."""


class TableHistory:
    """What happens to a table on one side, and two handles on it."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._handles: dict[str, Any] = {}
        self._steps = 0

    def go(self, step: Step) -> Any:
        """How the step ends."""
        self._steps += 1
        name, *arguments = step
        return ending(lambda: getattr(self, name)(*arguments))

    # The product

    def open(self, handle: str, version: int | None = None) -> None:
        self._handles.pop(handle, None)
        self._handles[handle] = open_table(self._side, version)

    def open_at(self, handle: str, seconds: int) -> None:
        set_times(self._side)  # before: a handle knows the times that it has found
        self._handles.pop(handle, None)
        opened = open_table(self._side)
        opened.load_as_version(datetime.fromtimestamp(EPOCH + seconds, timezone.utc))
        self._handles[handle] = opened

    def create(self) -> None:
        create(self._side, checkpoint_every=4)

    def commit(
        self, handle: str, is_fresh: bool, query: str, batch_id: int, mode: str, has_file: bool
    ) -> None:
        if is_fresh:
            self.open(handle)
        path = f"{query} {self._steps}.parquet"
        if has_file:
            self._side.write_file(path, self._steps)
        commit(self._handles[handle], batch_id, [path] if has_file else (), query=query, mode=mode)

    def add_column(self, handle: str, name: str, kind: str) -> None:
        add_column(self._handles[handle], name, kind)

    def history(self, handle: str, limit: int) -> list[Any]:
        return history(self._handles[handle], limit)

    # Foreign writers

    def restore(self, handle: str, is_fresh: bool, version: int) -> bool:
        """Only whether it fails is compared."""
        if is_fresh:
            self.open(handle)
        return not isinstance(ending(lambda: self._handles.pop(handle).restore(version)), type)

    def foreign_write(self, what: str) -> None:
        if log_of(self._side):
            acts: dict[str, Callable[[], None]] = {
                "append": lambda: self._side.append(-self._steps),
                "compact": self._side.compact,
                "vacuum": self._side.vacuum,
            }
            ending(acts[what])

    def drop(self) -> None:
        drop(self._side)

    def drop_old_entries(self) -> None:
        drop_old_entries(self._side)

    # What is compared

    def state(self) -> dict[str, Any]:
        """Of the storage, and of the newest version; and what the handles say."""
        data_files = Counter(map(_name, self._side.paths()))
        seen = {f"handle {name}": self._seen(handle) for name, handle in sorted(self._handles.items())}
        newest = ending(lambda: open_table(self._side))
        if not isinstance(newest, type):
            seen["newest"] = [
                *self._seen(newest),
                ending(lambda: history(newest)),
                Counter(map(_name, self._side.files(newest))),
                ending(lambda: self._side.rows(newest)),
            ]
        return {"storage": data_files, "opened": newest if isinstance(newest, type) else "", **seen}

    def _seen(self, handle: Any) -> list[Any]:
        tokens = [ending(partial(handle.transaction_version, query)) for query in QUERIES]
        columns = [(one["name"], one["type"]) for one in _columns(handle)]
        return [handle.version(), tokens, columns, handle.metadata().partition_columns]


def _columns(handle: Any) -> list[Any]:
    return json.loads(handle.schema().to_json())["fields"]


def _name(path: str) -> str:
    """Foreign writers give files names of their own."""
    return "foreign" if path.startswith("part-") else path


handles = st.sampled_from(["a", "b"])
is_fresh = st.sampled_from([True, True, False])
versions = st.integers(0, 9)
modes = st.sampled_from(["append", "append", "overwrite"])
commits = st.tuples(
    st.just("commit"), handles, is_fresh, st.sampled_from(QUERIES), st.integers(0, 5), modes, st.booleans()
)
foreign_writes = st.tuples(
    st.just("foreign_write"), st.sampled_from(["append", "append", "compact", "vacuum"])
)
steps: st.SearchStrategy[Step] = st.one_of(
    commits,
    commits,
    commits,
    foreign_writes,
    st.tuples(st.just("open"), handles),
    st.tuples(st.just("open"), handles, versions),
    st.tuples(st.just("open_at"), handles, st.integers(-50, 1000)),
    st.tuples(
        st.just("add_column"), handles, st.sampled_from(["x", "X", "id"]), st.sampled_from(["long", "string"])
    ),
    st.tuples(st.just("history"), handles, st.integers(1, 5)),
    st.tuples(st.just("restore"), handles, is_fresh, versions),
    st.tuples(st.just("drop_old_entries")),
    st.tuples(st.sampled_from(["create", "drop"])),
)


@settings(
    derandomize=True,
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(steps, min_size=5, max_size=25))
def test_library_and_fake_live_through_the_same_history(history_of_table: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake, real = TableHistory(FakeSide()), TableHistory(RealSide(Path(folder)))
        for step in [("create",), ("open", "a"), ("open", "b"), *history_of_table]:
            assert (fake.go(step), fake.state()) == (real.go(step), real.state()), step
