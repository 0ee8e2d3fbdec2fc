"""What the page of `penstock ui` is started with, and the store that it shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..committers.errors import ConfigurationError
from ..committers.store.database import Clock
from ..committers.store.sql import SqlManifestStore, utc_now
from ..datasource.stored.table_access import TableAccess

TOKEN_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True)
class UiConfig:
    """
    Args:
        open_store: opens the store
        access: options to open tables
        store_option: how a command names the store, such as `--store URL`
        allows_actions: whether the page may change the store
        token: what a user has to know; empty: everybody may read, and nobody may change anything
        hosts: names under which the page is reached, besides this machine's own
        clock: injected for tests

    Raises:
        ConfigurationError: actions are allowed without a token, or it is short.
    """

    open_store: Callable[[], SqlManifestStore]
    access: TableAccess
    store_option: str
    allows_actions: bool = False
    token: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()
    clock: Clock = utc_now

    def __post_init__(self) -> None:
        if self.allows_actions and not self.token:
            raise ConfigurationError("penstock ui: actions need a token. Set $PENSTOCK_UI_TOKEN.")
        if self.token and len(self.token) < TOKEN_LENGTH_MIN:
            raise ConfigurationError(
                f"penstock ui: the token in $PENSTOCK_UI_TOKEN has {len(self.token)} characters. Give at "
                f"least {TOKEN_LENGTH_MIN}, which nobody can guess, as from: openssl rand -hex 16"
            )


class CurrentStore:
    """The store, opened again if the file of a SQLite store was replaced. Safe to share among threads."""

    def __init__(self, open_store: Callable[[], SqlManifestStore]) -> None:
        self._open = open_store
        self._lock = threading.Lock()
        self._store = open_store()

    def __call__(self) -> SqlManifestStore:
        with self._lock:
            if not self._store.has_same_file:
                opened = self._open()
                self._store.close()
                self._store = opened
            return self._store

    def close(self) -> None:
        self._store.close()
