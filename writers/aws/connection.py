"""The connection to an AWS service, for rows and for checks. Only here aiobotocore is used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

import botocore.session
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore.loaders import create_loader

from ..requests.http_answers import read_answer
from ..requests.redirects import WithoutRedirects


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


class _Session(AIOHTTPSession):  # type: ignore[misc]  # untyped
    """Bounds what the library reads of an answer, and does not follow redirects."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return WithoutRedirects(await super()._get_session(proxy_url))

    async def send(self, request: Any) -> Any:
        request.stream_output = True  # otherwise the library reads the body here
        response = await super().send(request)
        response.raw = _Body(await read_answer(response.raw))
        return response


def open_client(arguments: Mapping[str, Any], **config: Any) -> AbstractAsyncContextManager[Any]:
    """Return a context manager for a new client.

    Args:
        arguments: of `create_client`
        config: arguments of `AioConfig`
    """
    session = get_session()
    session.register_component("data_loader", _data_loader())
    # Of the clients that get credentials, for example of STS.
    session.set_default_client_config(AioConfig(http_session_cls=_Session))
    client: AbstractAsyncContextManager[Any] = session.create_client(
        **arguments, config=AioConfig(http_session_cls=_Session, **config)
    )
    return client


@cache
def _data_loader() -> Any:
    """Return the loader of service descriptions. It caches them: reading them takes longer than a request."""
    return create_loader(botocore.session.get_session().get_config_variable("data_path"))
