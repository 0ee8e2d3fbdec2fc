"""pyiceberg's catalog clients, with time-outs that the library does not set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from ...library_hooks import changed_library, check_hooks, hook

REQUEST_TIMEOUT_S = (10, 300)
"""To connect, and between two parts of an answer. Catalogs take their time for a commit."""


def is_rest(properties: Mapping[str, object]) -> bool:
    """Return True if pyiceberg's `load_catalog` would open a REST catalog with these properties."""
    kind, uri = properties.get("type"), properties.get("uri")
    if "py-catalog-impl" in properties or not isinstance(uri, str):
        return False
    return uri.startswith("http") if kind is None else str(kind).lower() == "rest"


class PatientRestCatalog(RestCatalog):
    """pyiceberg's client with a timeout: it sets none, and a server that stalls would hold the query forever.

    A commit that times out may have landed, like any other whose answer is lost.

    Raises:
        ConfigurationError: the library no longer calls the hook that sets the time-out.
    """

    _has_timeout = False

    def __init__(self, name: str, **properties: Any) -> None:
        check_hooks(PatientRestCatalog)
        super().__init__(name, **properties)
        if not self._has_timeout:
            raise changed_library("pyiceberg", "a call of RestCatalog._config_headers for each session")

    @hook
    def _config_headers(self, session: Session) -> None:
        """Called for every session before its first request, which may already ask for a token."""
        super()._config_headers(session)
        set_default_timeout(session)
        self._has_timeout = True


def set_default_timeout(session: Session) -> None:
    """For requests without a timeout of their own. The library has no setting for it."""
    request: Any = partial(session.request, timeout=REQUEST_TIMEOUT_S)
    session.request = request  # type: ignore[method-assign]
