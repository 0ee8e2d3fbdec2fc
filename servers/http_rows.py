"""An HTTP service that receives rows as JSON, in a process of its own, and fails when it is told to.

It keeps the ids of the rows. It can ignore requests whose Idempotency-Key it knows, as services for payments
do.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Literal
from urllib.request import Request, urlopen

Fault = Literal["cut before", "cut after"]
"""The connection ends before the rows are taken, or after."""

_CONTROL = "/--control--"
_ROWS = "/--rows--"
_RESOURCES = "/--resources--"


@dataclass(frozen=True, slots=True)
class Received:
    """One request, in the order of arrival."""

    ids: tuple[int, ...]
    key: str
    """Idempotency-Key."""
    headers: dict[str, str]
    method: str
    path: str
    """With the query, as it was sent."""
    at: float


class HttpRows:
    """The test's side of the service."""

    def __init__(self, base: str) -> None:
        self.base = base

    @property
    def url(self) -> str:
        return f"{self.base}/rows"

    def ids(self) -> list[int]:
        """The ids of all rows that were taken, in the order of arrival."""
        return [row_id for one in self.received() for row_id in one.ids]

    def received(self) -> list[Received]:
        """The requests whose rows were taken."""
        return [Received(**{**one, "ids": tuple(one["ids"])}) for one in self._get()["received"]]

    def rows(self) -> list[dict[str, Any]]:
        """All rows that were taken, in the order of arrival, as they were parsed."""
        with urlopen(self.base + _ROWS) as response:
            rows: list[dict[str, Any]] = json.load(response)
        return rows

    def resources(self) -> list[dict[str, Any]]:
        """The row at each path below /rows/, as PUT, PATCH and DELETE have left it."""
        with urlopen(self.base + _RESOURCES) as response:
            rows: list[dict[str, Any]] = json.load(response)
        return rows

    def put(self, row_id: int) -> None:
        """Add a row at a path of its own, as another client."""
        row = json.dumps({"id": row_id}).encode()
        urlopen(Request(f"{self.url}/{row_id}", row, method="PUT")).close()

    def requests(self) -> int:
        """The number of requests since the last `set`, whatever became of them."""
        count: int = self._get()["requests"]
        return count

    def last_row(self) -> Any:
        """The last row of the last request, as it was parsed."""
        return self._get()["last_row"]

    def set(
        self,
        *,
        deduplicate: bool = False,
        latency_s: float = 0.0,
        answers: tuple[int | Fault, ...] = (),
        refused: tuple[int, ...] = (),
        stalls_after: int = -1,
        down_after: int = -1,
        retry_after_s: int | None = None,
    ) -> None:
        """
        Args:
            deduplicate: a request with a known key is answered, and its rows are not taken
            answers: to the next requests: a status, which takes no rows, or a fault
            refused: a request with one of these ids is answered with 422
            stalls_after: after so many requests, answer when the test ends; -1: never
            down_after: after so many requests, answer 503; -1: never
            retry_after_s: the header Retry-After of these answers
        """
        settings = {
            "deduplicate": deduplicate,
            "latency_s": latency_s,
            "answers": answers,
            "refused": refused,
            "stalls_after": stalls_after,
            "down_after": down_after,
            "retry_after_s": retry_after_s,
        }
        urlopen(Request(self.base + _CONTROL, json.dumps(settings).encode(), method="PUT")).close()

    def add(self, row_id: int) -> None:
        """Add a row as another client."""
        urlopen(Request(self.url, json.dumps([{"id": row_id}]).encode(), method="POST")).close()

    def clear(self) -> None:
        urlopen(Request(self.base + _CONTROL, method="DELETE")).close()

    def _get(self) -> Any:
        with urlopen(self.base + _CONTROL) as response:
            return json.load(response)


@contextmanager
def http_rows(errors: IO[bytes] | None = None) -> Iterator[HttpRows]:
    """
    Args:
        errors: where the log of the server goes; None: to this process's own
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        listener.set_inheritable(True)
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())], pass_fds=[listener.fileno()], stderr=errors
        )
        try:
            yield HttpRows(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.kill()
            server.wait()


# The service's side -----------------------------------------------------------------------------------


@dataclass
class _State:
    settings: dict[str, Any] = field(
        default_factory=lambda: {"answers": [], "refused": [], "stalls_after": -1}
    )
    received: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    rows: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: int = 0

    def change(self, method: str, path: str, rows: list[dict[str, Any]]) -> int:
        """Change the resource of a row, and return the status."""
        if method == "DELETE":
            return 404 if self.resources.pop(path, None) is None else 204
        if method == "PATCH":
            self.resources.setdefault(path, {}).update(rows[0])
        elif method == "PUT":
            self.resources[path] = rows[0]
        return 200


def _rows_of(body: bytes, content_type: str) -> list[dict[str, Any]]:
    if not body:
        return []
    if content_type == "application/x-ndjson":
        return [json.loads(line) for line in body.splitlines()]
    parsed = json.loads(body)
    return parsed if isinstance(parsed, list) else [parsed]


def _serve(descriptor: int) -> None:
    from aiohttp import web

    state = _State()

    async def take(request: web.Request) -> web.StreamResponse:
        settings, rows = state.settings, _rows_of(await request.read(), request.content_type)
        state.requests += 1
        number = state.requests
        await asyncio.sleep(settings.get("latency_s", 0.0))
        if 0 <= settings["stalls_after"] < number:
            await asyncio.Event().wait()
        if 0 <= settings.get("down_after", -1) < number:
            wait_s = settings["retry_after_s"]
            return web.Response(status=503, headers={} if wait_s is None else {"Retry-After": str(wait_s)})
        answer = settings["answers"].pop(0) if settings["answers"] else 200
        status = 200
        if answer == "cut before":
            assert request.transport is not None
            request.transport.abort()
        elif isinstance(answer, int) and answer >= 300:
            return web.Response(status=answer, text="a message")
        elif refused := {int(row["id"]) for row in rows} & set(settings["refused"]):
            return web.Response(status=422, text=f"refused: {sorted(refused)}")
        else:
            key = request.headers.get("Idempotency-Key", "")
            if not (settings.get("deduplicate") and key and key in state.keys):
                _take(request, rows, key)
                status = state.change(request.method, request.raw_path, rows)
            if answer == "cut after":
                assert request.transport is not None
                request.transport.abort()
        return web.Response(status=status)

    def _take(request: web.Request, rows: list[dict[str, Any]], key: str) -> None:
        state.keys.add(key)
        state.rows += rows
        ids = [row["id"] for row in rows]
        headers = dict(request.headers)
        state.received.append(
            {
                "ids": ids,
                "key": key,
                "headers": headers,
                "method": request.method,
                "path": request.raw_path,
                "at": time.time(),
            }
        )

    async def show(_: web.Request) -> web.Response:
        last_row = state.rows[-1] if state.rows else None
        shown = {"received": state.received, "last_row": last_row, "requests": state.requests}
        return web.json_response(shown)

    async def show_rows(_: web.Request) -> web.Response:
        return web.json_response(state.rows)

    async def show_resources(_: web.Request) -> web.Response:
        return web.json_response(list(state.resources.values()))

    async def control(request: web.Request) -> web.Response:
        state.settings, state.requests = await request.json(), 0
        return web.Response()

    async def clear(_: web.Request) -> web.Response:
        state.received.clear()
        state.rows.clear()
        state.resources.clear()
        state.keys.clear()
        return web.Response()

    application = web.Application(client_max_size=1 << 30)
    application.router.add_get(_CONTROL, show)
    application.router.add_get(_ROWS, show_rows)
    application.router.add_get(_RESOURCES, show_resources)
    application.router.add_put(_CONTROL, control)
    application.router.add_delete(_CONTROL, clear)
    application.router.add_route("*", "/rows{rest:.*}", take)
    web.run_app(application, sock=socket.socket(fileno=descriptor), print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
