"""A REST catalog client with timeouts, and the file I/O of its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.table import Table
from requests import Response, Session

from ...errors import AccessRefusedError
from ...file_tables.library_hooks import changed_library, check_hooks, hook
from ...redirects import is_redirect, redirect_message
from .table_file_io import refuse_location_provider
from .timeouts import Timeouts


class RestCatalogWithTimeouts(RestCatalog):
    """pyiceberg's client with a timeout for each request. Redirects are not followed.

    Raises:
        ConfigurationError: the library no longer calls the hook that sets the timeout.
    """

    _timeouts: Timeouts | None = None
    _has_timeout = False

    def __init__(self, name: str, **properties: Any) -> None:
        check_hooks(RestCatalogWithTimeouts)
        self._timeouts = Timeouts.of("rest", properties)
        super().__init__(name, **properties)
        if not self._has_timeout:
            raise changed_library("pyiceberg", "a call of RestCatalog._config_headers for each session")

    @hook
    def _config_headers(self, session: Session) -> None:
        """Called for each session before its first request, which may already request a token."""
        super()._config_headers(session)
        assert self._timeouts is not None, "set before the library creates a session"
        timeout = (self._timeouts.connect_s, self._timeouts.request_s)
        request: Any = partial(_request, session.request, timeout)
        session.request = request  # type: ignore[method-assign]
        self._has_timeout = True


def _request(
    send: Callable[..., Response], timeout: tuple[float, float], method: str, url: str, **arguments: Any
) -> Response:
    """
    Raises:
        AccessRefusedError: the catalog redirects. Tokens and tables are for the configured address alone.
    """
    response = send(method, url, **{"timeout": timeout, **arguments, "allow_redirects": False})
    if is_redirect(response.status_code):
        raise AccessRefusedError(f"{method} {url}: {redirect_message(response.headers)}")
    return response


class RestFileIO(RestCatalog):
    """File I/O with the `config` and storage credentials that the catalog returns with a table."""

    @hook
    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        """Called for each table that is loaded or created."""
        metadata = table_response.metadata
        refuse_location_provider(metadata.properties, table_response.metadata_location)
        bare = metadata.model_copy(update={"properties": {}})
        response = table_response.model_copy(update={"metadata": bare})
        table = super()._response_to_table(identifier_tuple, response)
        table.metadata = metadata
        return table
