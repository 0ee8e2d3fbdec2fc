"""Templates: how values become HTML. All text is escaped, and shown without credentials."""

from __future__ import annotations

import hashlib
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ..committers.store.selection import short_id
from ..committers.texts.safe_text import safe
from ..operating.formatting import age, count, short_seconds, size
from .config import CurrentStore, UiConfig
from .security import Sessions, session_of

STATIC = {"penstock.css": "text/css", "penstock.js": "text/javascript", "icon.svg": "image/svg+xml"}
NOTHING = "–"


class Renderer:
    """Makes the responses of all pages.

    Args:
        title: of the store, in the head of each page
    """

    def __init__(self, config: UiConfig, store: CurrentStore, sessions: Sessions) -> None:
        self._config = config
        self._store = store
        self._sessions = sessions
        folder = files("penstock.ui") / "static"
        self.static = {name: (folder / name).read_bytes() for name in STATIC}
        version = hashlib.sha256(b"".join(self.static.values())).hexdigest()[:12]
        self._templates = Environment(
            loader=PackageLoader("penstock.ui"),
            autoescape=True,
            finalize=_shown,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(assets=version, nothing=NOTHING)
        self._templates.filters.update(
            count=count, number=_number, seconds=_seconds, short=short_id, size=_size, time=_time
        )

    def page(self, request: Request, template: str, status_code: int = 200, **values: Any) -> Response:
        now, session = self._config.clock(), session_of(request)
        text = self._templates.get_template(template).render(
            **values,
            now=now,
            ago=lambda moment: NOTHING if moment is None else f"{age(now - moment)} ago",
            age=lambda moment: NOTHING if moment is None else age(now - moment),
            store_name=self._store().name if self._is_known(request) else "",
            who="" if session is None else session.who,
            form_key="" if session is None else self._sessions.form_key(session),
            may_act=self._config.allows_actions and session is not None,
            has_token=bool(self._config.token),
        )
        return HTMLResponse(text, status_code)

    def _is_known(self, request: Request) -> bool:
        return not self._config.token or session_of(request) is not None


def _shown(value: object) -> object:
    """Make each value that a template prints safe to display."""
    if value is None:
        return NOTHING
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number(value: float | None, decimals: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else short_seconds(value)


def _size(value: int | None) -> str:
    return NOTHING if value is None else size(value)


def _time(value: datetime | None) -> Markup | str:
    if value is None:
        return NOTHING
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), f"{value:%Y-%m-%d %H:%M:%S}")
