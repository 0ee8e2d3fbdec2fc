"""A SQL catalog client with timeouts for Postgres."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event, make_url
from sqlalchemy.engine import URL

from ...file_tables.library_hooks import changed_library, check_hooks, hook
from ...postgres_timeouts import connection_settings, set_timeouts

_DRIVERS = ("psycopg", "psycopg2")


class SqlCatalogWithTimeouts(SqlCatalog):
    """pyiceberg's catalog with timeouts for its connections to Postgres (`committers.postgres_timeouts`).

    Other databases are opened as by the library.

    Raises:
        ConfigurationError: the library no longer calls the hook that sets the timeouts.
    """

    _has_timeout = False

    def __init__(self, name: str, **properties: Any) -> None:
        check_hooks(SqlCatalogWithTimeouts)
        url = make_url(properties["uri"])
        self._url: URL | None = url if url.get_driver_name() in _DRIVERS else None
        if self._url is not None:
            settings = {key: str(value) for key, value in connection_settings(url).items()}
            properties["uri"] = url.update_query_dict(settings).render_as_string(hide_password=False)
        super().__init__(name, **properties)
        if not self._has_timeout:
            raise changed_library("pyiceberg", "a call of SqlCatalog._init_catalog for each engine")

    @hook
    def _init_catalog(self) -> None:
        """Called after the engine is created, before its first connection."""
        if self._url is not None:
            url = self._url
            event.listen(self.engine, "connect", lambda connection, _: set_timeouts(connection, url))
        self._has_timeout = True
        super()._init_catalog()
