"""The store and questions to the operator, for all commands."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from ...committers.errors import ConfigurationError, PenstockError, shown

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import StreamStatus
    from ...datasource.stored.table_access import TableAccess


COLLECT_AFTER = 100_000
"""New objects after which Python looks for garbage, by default 700."""


def opened_store(
    checkpoint: str | None, store: str | None, access: TableAccess | None = None
) -> SqlManifestStore:
    """Open the store that the options of a command name, or else the environment.

    Args:
        access: options of the command for tables; those for streams that the store does not have are reported
    """
    from ...operating.stores import open_named_store
    from ..output import print_line

    if checkpoint is None and store is None:
        store = os.environ.get("PENSTOCK_STORE") or None
    opened = open_named_store(checkpoint, store)
    if access is not None and access.streams:
        from ...datasource.stored.stream_access import about_unknown_names

        try:
            unknown = about_unknown_names(access, opened.streams(), opened.name)
        except PenstockError:
            opened.close()
            raise
        if unknown:
            print_line(f"Warning: {unknown}", stderr=True)
    return opened


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely. Thousands of streams are many objects and no garbage: Python would visit all of
    them again and again, which takes a tenth of the time of a command that lists them.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def one_stream(store: SqlManifestStore, name: str | None) -> StreamStatus:
    """Return the stream that a command names, with the place where its checkpoint is now."""
    from dataclasses import replace

    from ...committers.store.selection import select_one
    from ...datasource.planning.moved_checkpoint import settings_here

    found = select_one(store.streams(), name)
    return replace(found, settings=settings_here(store, found.key))


def operator(who: str | None) -> str:
    """Return the name to store with a decision: the given one, or the current user's."""
    import getpass

    try:
        return who or getpass.getuser()
    except (KeyError, OSError):
        raise ConfigurationError("The current user has no name. Give one with --who NAME.") from None


def checked_reason(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError(
            "--reason TEXT is empty. Give the reason: the store keeps it with the decision."
        )
    return reason


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def parse_time(option: str, text: str | None) -> datetime | None:
    """Return the time that an option names, in UTC if it has no offset; None without the option.

    Raises:
        ConfigurationError: it is no time.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {shown(text)} is no time. Give it as 2026-11-25, 2026-11-25T14:00 or "
            "2026-11-25T14:00+01:00."
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)
