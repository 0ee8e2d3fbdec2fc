"""Serves the page in a thread of the test, on a port of the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from penstock.committers.store.sql import open_store
from penstock.datasource.stored.table_access import TableAccess
from penstock.ui.app import create_app
from penstock.ui.config import UiConfig
from penstock.ui.server import listen

TOKEN = "0123456789abcdef-token"


def config(store_url: str, **given: Any) -> UiConfig:
    if given.get("allows_actions"):
        given = {"token": TOKEN, **given}
    return UiConfig(lambda: open_store(store_url), TableAccess({}, {}), f"--store {store_url}", **given)


@contextmanager
def served(store_url: str, **given: Any) -> Iterator[str]:
    """Yield the URL."""
    listening = listen("127.0.0.1", 0)
    app = create_app(config(store_url, **given))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
