"""Runs NATS with JetStream on the loopback: the one on PATH, or Debian's, unpacked and not installed."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import nkeys
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from servers.debian import unpacked
from servers.ports import free_port, wait_for

T = TypeVar("T")

SECRET = "geheim-4711"
NKEY_SEED: bytes = nkeys.encode_seed(b"penstock" * 4, nkeys.PREFIX_BYTE_USER)
NKEY: bytes = nkeys.from_seed(bytearray(NKEY_SEED)).public_key
MAX_PAYLOAD = 1024 * 1024

USERS = f"""
authorization {{
  users = [
    {{user: tests, password: tests}}
    {{user: writer, password: {SECRET}}}
    {{user: limited, password: {SECRET}, permissions: {{
       publish: ["rows.1", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*"], subscribe: "_INBOX.>"}}}}
    {{user: blind, password: {SECRET}, permissions: {{publish: "rows.>", subscribe: "_INBOX.>"}}}}
    {{nkey: {NKEY.decode()}}}
  ]
}}
no_auth_user: tests
"""


def signed_users() -> tuple[str, str]:
    """Return the configuration of a server whose users have JWTs, and the credentials of one of them."""
    operator, account, user = (
        nkeys.from_seed(bytearray(nkeys.encode_seed(b"penstock" * 4, kind)))
        for kind in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    )
    anything = dict.fromkeys(("subs", "data", "payload", "conn", "leaf", "imports", "exports"), -1)
    limits = {**anything, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    of_operator = _jwt(operator, operator, {"type": "operator"})
    of_account = _jwt(operator, account, {"type": "account", "limits": limits})
    of_user = _jwt(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    system = nkeys.from_seed(bytearray(nkeys.encode_seed(b"system--" * 4, nkeys.PREFIX_BYTE_ACCOUNT)))
    of_system = _jwt(operator, system, {"type": "account", "limits": anything})
    config = (
        f"operator: {of_operator}\nresolver: MEMORY\n"
        f"resolver_preload: {{{account.public_key.decode()}: {of_account}, "
        f"{system.public_key.decode()}: {of_system}}}\nsystem_account: {system.public_key.decode()}\n"
    )
    parts = (("NATS USER JWT", of_user), ("USER NKEY SEED", NKEY_SEED.decode()))
    return config, "".join(
        f"-----BEGIN {name}-----\n{part}\n------END {name}------\n\n" for name, part in parts
    )


def _jwt(issuer: Any, subject: Any, claims: dict[str, Any]) -> str:
    payload = {
        "jti": subject.public_key.decode(),
        "iat": 1_760_000_000,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "nats": {**claims, "version": 2},
    }
    head, body = (
        _base64(json.dumps(one).encode()) for one in ({"typ": "JWT", "alg": "ed25519-nkey"}, payload)
    )
    return f"{head}.{body}.{_base64(issuer.sign(f'{head}.{body}'.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True)
class NatsServer:
    """A running server. Tests that share it call `clear`."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def run(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """Run the work with a connection of its own, and return its result."""

        async def connected() -> T:
            client = Client()
            await client.connect(self.url, allow_reconnect=False)
            try:
                return await work(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(connected())

    def create(self, name: str, *subjects: str, window_s: float = 3600, **config: Any) -> None:
        """Create a stream.

        Args:
            window_s: its duplicate window
            config: see `StreamConfig`
        """
        wanted = StreamConfig(name=name, subjects=list(subjects), duplicate_window=window_s, **config)
        self.run(lambda stream: stream.add_stream(wanted))

    def change(self, name: str, **config: Any) -> None:
        async def change(stream: JetStreamContext) -> None:
            old = (await stream.stream_info(name)).config
            await stream.update_stream(old.evolve(**config))

        self.run(change)

    def publish(self, subject: str, data: bytes) -> None:
        self.run(lambda stream: stream.publish(subject, data))

    def messages(self, name: str) -> list[tuple[str, dict[str, str], bytes]]:
        """Return subject, headers and data of all messages of a stream, in their order."""

        async def read(stream: JetStreamContext) -> list[tuple[str, dict[str, str], bytes]]:
            found = []
            subscription = await stream.subscribe(">", stream=name, ordered_consumer=True)
            for _ in range((await stream.stream_info(name)).state.messages):
                message = await subscription.next_msg(timeout=30)
                found.append((message.subject, dict(message.headers or {}), message.data))
            return found

        return self.run(read)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(data) for _, _, data in self.messages(name)]

    def clear(self) -> None:
        """Delete all streams."""

        async def delete(stream: JetStreamContext) -> None:
            for info in await stream.streams_info():
                await stream.delete_stream(str(info.config.name))

        self.run(delete)


@contextmanager
def nats_server(config: str = "") -> Iterator[NatsServer]:
    """
    Args:
        config: more of the server's configuration

    Raises:
        DebianUnreachableError: there is no nats-server on PATH, and it cannot be downloaded.
    """
    program = shutil.which("nats-server") or str(
        unpacked("nats-server", ["nats-server"]) / "usr" / "sbin" / "nats-server"
    )
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config", "w") as file:  # noqa: PTH123
            file.write(
                f'listen: "127.0.0.1:{port}"\nmax_payload: {MAX_PAYLOAD}\n'
                f'jetstream {{store_dir: "{folder}/streams"}}\n{config}'
            )
        with open(f"{folder}/log", "wb") as log:  # noqa: PTH123
            server = subprocess.Popen([program, "-c", f"{folder}/config"], stdout=log, stderr=log)
        try:
            wait_for(port, server)
            yield NatsServer(port, server.pid)
        finally:
            server.kill()
            server.wait()
