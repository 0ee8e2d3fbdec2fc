"""`penstock ui`: a page with the streams of a store."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
from importlib.util import find_spec
from typing import Annotated

import typer

from ...committers.errors import ConfigurationError
from ...committers.texts.safe_text import MASK
from ...datasource.stored.table_access import TableAccess
from . import options
from .common import opened_store

TOKEN = "PENSTOCK_UI_TOKEN"  # noqa: S105  the name of a variable
_MODULES = ("jinja2", "starlette", "uvicorn")


def ui(
    access: TableAccess,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on. 0.0.0.0: all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 chooses a free one.")] = 8642,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Also resume, park, skip, acknowledge, commit and send again in the page. Needs a token: "
            "that in $PENSTOCK_UI_TOKEN or, without it, one that is printed at the start.",
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="Host name under which the page is reached, such as that of an ingress. Can be repeated. "
            "localhost and addresses are always allowed.",
        ),
    ] = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
) -> None:
    """Serve a page with the streams of a store: state, lag, freshness, batches, errors, dead letters, tables.

    It only reads, unless --allow-actions is given. With $PENSTOCK_UI_TOKEN, each page needs this token.
    Needs the extra `penstock[ui]`.

    Example: `penstock ui --store $URL`
    """
    _check_installed()
    from ...ui.config import UiConfig
    from ...ui.server import listen, serve

    token = os.environ.get(TOKEN, "")
    is_generated = allow_actions and not token
    if is_generated:
        token = secrets.token_urlsafe(24)
    with opened_store(checkpoint, store, access) as opened:
        name = opened.name
    config = UiConfig(
        open_store=lambda: opened_store(checkpoint, store),
        access=access,
        store_option=_store_option(checkpoint, name),
        allows_actions=allow_actions,
        token=token,
        hosts=(*(allowed_host or ()), host),
    )
    listening = listen(host, port)
    _announce(host, listening.getsockname()[1], token if is_generated else "", is_open=not token)
    serve(config, listening)


def _check_installed() -> None:
    """
    Raises:
        ConfigurationError: the packages of the extra are missing.
    """
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"penstock ui needs packages that are not installed ({', '.join(missing)}). Run: pip install "
            "'penstock[ui]'"
        )


def _store_option(checkpoint: str | None, name: str) -> str:
    """How the commands on the page name the store, without its secrets."""
    if checkpoint is not None:
        return f"--checkpoint {shlex.quote(checkpoint)}"
    return '--store "$PENSTOCK_STORE"' if MASK in name else f"--store {shlex.quote(name)}"


def _announce(host: str, port: int, token: str, *, is_open: bool) -> None:
    from ..output import print_line

    print_line(f"The page is at http://{f'[{host}]' if ':' in host else host}:{port}/")
    if token:
        print_line(f"Its token, valid until this process ends: {token}")
    if is_open and not _is_of_this_machine(host):
        print_line(
            f"Warning: everybody who can reach {host}:{port} can read the page, and dead letters. Set "
            f"${TOKEN} to ask for a token, or listen on 127.0.0.1.",
            stderr=True,
        )


def _is_of_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
