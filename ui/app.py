"""The application: paths, sign-in, actions and errors."""

from __future__ import annotations

from contextlib import suppress

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..committers.errors import ConfigurationError, PenstockError
from ..committers.texts.safe_text import get_logger, one_line
from ..operating.overview import find_stream
from . import actions
from .config import CurrentStore, UiConfig
from .pages import Pages, place_of
from .rendering import STATIC, Renderer
from .security import NAME_LENGTH_MAX, SESSION_S_MAX, Guard, Sessions, checked_path, form_of, session_of

logger = get_logger(__name__)


def create_app(config: UiConfig) -> ASGIApp:
    """Return the application of a store, which is opened at once.

    Raises:
        ConfigurationError: there is no such store.
        RetryableError: it does not answer.
    """
    return _App(config).guarded()


class _App:
    def __init__(self, config: UiConfig) -> None:
        self._config = config
        self._store = CurrentStore(config.open_store)
        self._sessions = Sessions(config.token)
        self._renderer = Renderer(config, self._store, self._sessions)
        self._pages = Pages(config, self._store, self._renderer)

    def guarded(self) -> ASGIApp:
        pages, stream = self._pages, "/streams/{query_id}/{target}"
        app = Starlette(
            routes=[
                Route("/", pages.streams),
                Route(stream, pages.stream),
                Route(f"{stream}/table", pages.table),
                Route(f"{stream}/letters", pages.letters),
                Route(f"{stream}/batches/{{batch:int}}", pages.batch),
                Route(f"{stream}/{{action}}", self._act, methods=["POST"]),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._log_out, methods=["POST"]),
                Route("/static/{name}", self._static),
                Route("/healthz", _healthy),
            ],
            exception_handlers={PenstockError: self._failed, HTTPException: self._refused},
        )
        return Guard(app, self._config, self._sessions)

    # Sign in ----------------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        if not self._config.token:
            return RedirectResponse("/", 303)
        if request.method == "GET":
            return self._login_page(request, "", request.query_params.get("next", "/"))
        form = await form_of(request)
        after = checked_path(form.get("next", "/"))
        if not self._sessions.is_token(form.get("token", "")):
            logger.warning("Somebody at %s has given a wrong token.", _client_of(request))
            return self._login_page(request, "This is not the token.", after, 403)
        who = one_line(form.get("who", "").strip())[:NAME_LENGTH_MAX] or "ui"
        response = RedirectResponse(after, 303)
        response.set_cookie(
            self._sessions.cookie_name,
            self._sessions.begin(who).cookie,
            max_age=SESSION_S_MAX,
            httponly=True,
            samesite="strict",
            secure=_is_https(request),
        )
        return response

    def _login_page(self, request: Request, error: str, after: str, status_code: int = 200) -> Response:
        return self._renderer.page(request, "login.html", status_code, error=error, after=checked_path(after))

    async def _log_out(self, request: Request) -> Response:
        await self._checked_form(request)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self._sessions.cookie_name)
        return response

    async def _checked_form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that this page has made for this session.

        Raises:
            HTTPException: it is not.
        """
        session, form = session_of(request), await form_of(request)
        if session is None or not self._sessions.is_form_key(session, form.get("form_key", "")):
            raise HTTPException(403, "This form is not of your session. Load the page again.")
        return form

    # Actions ----------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        if not self._config.allows_actions:
            raise HTTPException(403, "This page is read-only: penstock ui runs without --allow-actions.")
        form = await self._checked_form(request)
        return await run_in_threadpool(self._run, request, form)

    def _run(self, request: Request, form: dict[str, str]) -> Response:
        session, action, store = session_of(request), request.path_params["action"], self._store()
        assert session is not None
        if action not in actions.ACTIONS:
            raise HTTPException(404, "There is no such action.")
        key = self._pages.key(request)
        stream = find_stream(store, key)
        asked = actions.ActionRequest(stream, session.who, form.get("reason", ""), actions.batch_in(form))
        try:
            has_done = actions.run(store, self._config.access, action, asked)
        except PenstockError as error:
            return self._pages.stream(request, error=str(error), status_code=_status_of(error))
        logger.info("%s: %s of %s", session.who, action, key)
        return RedirectResponse(f"{place_of(key)}?done={action if has_done else 'nothing'}", 303)

    # Other paths ------------------------------------------------------------------------------------

    def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._renderer.static[name], media_type=STATIC[name], headers=headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        return await self._error(request, str(error), _status_of(error))

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await self._error(request, error.detail, error.status_code)

    async def _error(self, request: Request, text: str, status_code: int) -> Response:
        def page() -> Response:
            return self._renderer.page(request, "error.html", status_code, text=text, code=status_code)

        with suppress(PenstockError):  # of the store, whose name is in the head
            return await run_in_threadpool(page)
        return PlainTextResponse(f"{text}\n", status_code)


async def _healthy(request: Request) -> Response:
    """Answers as long as the process serves, also while the store is down."""
    return PlainTextResponse("ok\n")


def _status_of(error: PenstockError) -> int:
    return 409 if isinstance(error, ConfigurationError) else 503


def _client_of(request: Request) -> str:
    return "an unknown address" if request.client is None else request.client.host


def _is_https(request: Request) -> bool:
    return "https" in (request.scope["scheme"], request.headers.get("x-forwarded-proto", ""))
