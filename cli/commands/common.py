"""What all commands have in common: exit codes, the store that they work on, what they ask."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from ...committers.errors import ConfigurationError

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore

ATTENTION, WRONG_USAGE, FAILED, UNREACHABLE = 1, 2, 3, 4


def opened_store(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    """The store that the options of a command name, or the environment."""
    from ..access import open_named_store

    if checkpoint is None and store is None:
        store = os.environ.get("PENSTOCK_STORE") or None
    return open_named_store(checkpoint, store)


def operator(who: str | None) -> str:
    """The name that is kept with a decision."""
    import getpass

    try:
        return who or getpass.getuser()
    except (KeyError, OSError):
        raise ConfigurationError("This user has no name. Give one with --who NAME.") from None


def checked_reason(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError("Say why with --reason TEXT: it is kept for those who ask later.")
    return reason


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)
