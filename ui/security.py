"""Who may use the page: the check of the host, the token, the session, forged requests, and headers.

A session is a signed cookie, so that it is valid in each process with the same token, and after a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .config import UiConfig

SESSION_S_MAX = 12 * 3600
FORM_BYTES_MAX = 64 * 1024
NAME_LENGTH_MAX = 100
OPEN_PATHS = ("/healthz", "/login")
"""Without a session. So are the files below /static/."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Not `no-referrer`: with it, browsers send no origin with a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Session:
    """A user who has given the token."""

    who: str
    cookie: str


class Sessions:
    """Makes and reads the cookies of sessions.

    Args:
        token: empty: there are no sessions
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"penstock ui\0" + self._token).digest()
        self.cookie_name = f"penstock-ui-{self._mac(b'name')[:8]}"
        """Another one for each token: browsers send cookies to all ports of a machine."""

    def is_token(self, given: str) -> bool:
        return bool(self._token) and hmac.compare_digest(given.encode(), self._token)

    def begin(self, who: str) -> Session:
        name = base64.urlsafe_b64encode(who.encode()).decode().rstrip("=")
        value = f"{name}.{int(time.time()) + SESSION_S_MAX}.{secrets.token_hex(8)}"
        return Session(who, f"{value}.{self._mac(value.encode())}")

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if it is not valid, or has ended."""
        value, _, mac = cookie.rpartition(".")
        if not self._token or not hmac.compare_digest(mac.encode(), self._mac(value.encode()).encode()):
            return None
        name, ends_at, _ = value.split(".")
        if int(ends_at) < time.time():
            return None
        return Session(base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode(), cookie)

    def form_key(self, session: Session) -> str:
        """Return what each form of the session contains, which pages of others cannot know."""
        return self._mac(b"form\0" + session.cookie.encode())

    def is_form_key(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_key(session).encode())

    def _mac(self, value: bytes) -> str:
        return hmac.new(self._key, value, hashlib.sha256).hexdigest()


class Guard:
    """Refuses requests before a page sees them, and adds the headers to each response.

    Args:
        app: the pages
    """

    def __init__(self, app: ASGIApp, config: UiConfig, sessions: Sessions) -> None:
        self._app = app
        self._config = config
        self._sessions = sessions
        self._hosts = frozenset(host.lower().rstrip(".") for host in config.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        path = str(request.scope["path"])  # not of `request.url`, which contains the host
        if path == "/healthz":  # probes ask by the address of a container
            return None
        if not self._is_own(_host_of(request.headers.get("host", ""))):
            return PlainTextResponse(
                "This host name is not allowed. Start penstock ui with --allowed-host NAME, for the name "
                "under which it is reached.\n",
                400,
            )
        if request.method == "POST" and not _is_same_origin(request):
            return PlainTextResponse("This request comes from another site.\n", 403)
        if not self._config.token or path in OPEN_PATHS or path.startswith("/static/"):
            return None
        session = self._sessions.read(request.cookies.get(self._sessions.cookie_name, ""))
        if session is None:
            if request.method != "GET":
                return PlainTextResponse("Sign in first.\n", 401)
            query = request.scope["query_string"].decode("latin-1")
            after = f"{quote(path)}?{query}" if query else quote(path)
            return RedirectResponse(f"/login?next={quote(after, safe='')}", 303)
        request.state.session = session
        return None

    def _is_own(self, host: str) -> bool:
        """Return True for names that no DNS server of others can point to this machine."""
        host = host.lower().rstrip(".")
        if host in self._hosts or host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def _host_of(header: str) -> str:
    """Return the host without its port; empty if it is not a host."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_same_origin(request: Request) -> bool:
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def session_of(request: Request) -> Session | None:
    """Return the session of a request; None if the page has no token."""
    return getattr(request.state, "session", None)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: it is too large, or no form.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(415, "This is no form.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, "The form is too large.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise HTTPException(400, "The form is damaged.") from None


def checked_path(path: str) -> str:
    """Return a path of this page to continue with after the sign-in; others lead to the start."""
    is_own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_own else "/"
