"""The servers, and the subject of each row. The client library is loaded when it is needed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...committers.errors import ConfigurationError, check_installed
from ..requests.template import Template

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_S = 10
_PING_S = 20
_CLOSE_S = 2.0
OnError = Callable[[Exception], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTarget:
    """Where and how to publish rows. Pickled to the executors, with the credentials."""

    servers: tuple[str, ...]
    subject: Template
    headers: tuple[tuple[str, Template], ...] = ()
    expected_stream: str | None = None
    is_exactly_once: bool = False
    """Whether the stream must recognize all messages that are sent again."""
    ca_file: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)

    @property
    def templates(self) -> list[Template]:
        return [self.subject, *(template for _, template in self.headers)]

    @property
    def subjects(self) -> str:
        """A wildcard for the subjects of all rows."""
        tokens = "".join(text + ("" if column is None else "\0") for text, column in self.subject.parts)
        return ".".join("*" if "\0" in token else token for token in tokens.split("."))

    async def connect(self, on_error: OnError, on_closed: Callable[[], Awaitable[None]]) -> Client:
        """Return a connection. The library neither connects again nor buffers: the writer sends again.

        Raises:
            Exception: of the library, see `errors`.
        """
        from nats.aio.client import Client
        from nats.errors import NoServersError

        from .parser import bounded_parser

        causes: list[Exception] = []
        client = Client()
        client._ps = bounded_parser(client)

        async def note(error: Exception) -> None:
            causes.append(error)
            await on_error(error)

        try:
            await client.connect(
                list(self.servers),
                error_cb=note,
                closed_cb=on_closed,
                name="penstock",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                ping_interval=_PING_S,
                **self._arguments(client),
            )
            self._check_tls(client)
        except BaseException as error:
            await close(client)
            if isinstance(error, NoServersError) and causes:
                raise causes[-1] from None
            raise
        return client

    def _arguments(self, client: Client) -> dict[str, Any]:
        """Return the arguments for TLS and credentials."""
        arguments: dict[str, Any] = {}
        if self._has_tls:
            arguments["tls"] = self._tls()

        def secret(value: str) -> Callable[[], str]:
            def give() -> str:
                self._check_tls(client)
                return value

            return give

        for name, value in (("user", self.username), ("password", self.password), ("token", self.token)):
            if value is not None:
                arguments[name] = secret(value)
        if self.nkey_seed is not None or self.credentials is not None:
            check_installed("nkeySeed and credentials need", "nkeys", "penstock[nats]")
        if self.nkey_seed is not None:
            arguments["nkeys_seed_str"] = self.nkey_seed
        if self.credentials is not None:
            from nats.aio.client import RawCredentials

            arguments["user_credentials"] = RawCredentials(self.credentials)
        return arguments

    @property
    def _has_tls(self) -> bool:
        return self.servers[0].startswith("tls:")

    def _check_tls(self, client: Client) -> None:
        """The library goes on without TLS if the server does not ask for it, and sends the credentials."""
        if self._has_tls and not client._server_info.get("tls_required"):
            raise ConfigurationError(
                f"{', '.join(self.servers)} does not offer TLS. No credentials were sent. Use the URL of a "
                "server with TLS, or nats:// without encryption."
            )

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ConfigurationError(f"caFile={self.ca_file} cannot be read: {error}.") from error


async def close(client: Client) -> None:
    """Close a connection that is not needed any more. Raises nothing."""
    with suppress(Exception):
        await asyncio.wait_for(client.close(), _CLOSE_S)
