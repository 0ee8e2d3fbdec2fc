"""The connection to an AWS service, for rows and for checks. Only here aiobotocore is used."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session

from ..requests.http_answers import read_answer
from ..requests.redirects import WithoutRedirects
from .target import AwsTarget, data_loader


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


def open_client(target: AwsTarget, **config: Any) -> AbstractAsyncContextManager[Any]:
    """Return a context manager for a new client.

    Args:
        config: arguments of `AioConfig`
    """
    session = get_session()
    session.register_component("data_loader", data_loader())
    # Of the clients that get credentials, for example of STS.
    session.set_default_client_config(AioConfig(http_session_cls=_Session))
    client: AbstractAsyncContextManager[Any] = session.create_client(
        **target.arguments, config=AioConfig(http_session_cls=_Session, **config)
    )
    return client
