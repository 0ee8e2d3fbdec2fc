"""A client of REST catalogs that does not wait forever."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

REQUEST_TIMEOUT_S = (10, 300)
"""To connect, and between two parts of an answer. Catalogs take their time for a commit."""


class PatientRestCatalog(RestCatalog):
    """pyiceberg's client with a timeout: it sets none, and a server that stalls would hold the query forever.

    A commit that times out may have landed, like any other whose answer is lost.
    """

    def _config_headers(self, session: Session) -> None:
        """Called for every session before its first request, which may already ask for a token."""
        super()._config_headers(session)
        set_default_timeout(session)


def set_default_timeout(session: Session) -> None:
    """For requests without a timeout of their own. The library has no setting for it."""
    request: Any = partial(session.request, timeout=REQUEST_TIMEOUT_S)
    session.request = request  # type: ignore[method-assign]
