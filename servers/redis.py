"""Runs Redis on the loopback: the one on PATH, or Debian's, which is unpacked and not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from servers.debian import unpacked
from servers.ports import free_port, wait_for

_PACKAGES = (
    "redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1", "libhiredis0.14",
    "liblua5.1-0", "lua-bitop", "lua-cjson",
)  # fmt: skip


@dataclass(frozen=True)
class RedisServer:
    """A running server without persistence. Tests that share it call `clear`."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @contextmanager
    def connect(self) -> Iterator[Any]:
        with redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True) as client:
            yield client

    def rows(self, keys: str = "*") -> list[dict[str, Any]]:
        """Return the JSON objects under all keys that match, those of a stream or a list in their order."""
        texts: list[str] = []
        with self.connect() as client:
            for key in sorted(client.scan_iter(keys, count=1000)):
                kind = client.type(key)
                if kind == "string":
                    texts.append(client.get(key))
                elif kind == "hash":
                    texts += client.hvals(key)
                elif kind == "list":
                    texts += client.lrange(key, 0, -1)
                else:
                    texts += [entry["row"] for _, entry in client.xrange(key)]
        return [json.loads(text) for text in texts]

    def hashes(self, keys: str) -> list[dict[str, str]]:
        """Return the hashes under all keys that match."""
        with self.connect() as client:
            return [client.hgetall(key) for key in sorted(client.scan_iter(keys, count=1000))]

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """Add a user that may do everything, or what the rules of ACL SETUSER allow."""
        with self.connect() as client:
            client.execute_command("ACL", "SETUSER", name, "on", f">{password}", *(rules or ("~*", "+@all")))

    def clear(self) -> None:
        """Delete all keys and users, and reset limit and policy of the memory."""
        with self.connect() as client:
            client.flushall()
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
            for user in client.acl_users():
                if user != "default":
                    client.acl_deluser(user)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """
    Raises:
        DebianUnreachableError: there is no redis-server on PATH, and it cannot be downloaded.
    """
    program, environment = _program()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        with open(f"{folder}/log", "wb") as log:  # noqa: PTH123
            server = subprocess.Popen([program, *arguments], stdout=log, stderr=log, env=environment)
        try:
            wait_for(port, server)
            yield RedisServer(port, server.pid)
        finally:
            server.kill()
            server.wait()


def _program() -> tuple[str, dict[str, str]]:
    """Return the path of redis-server, and its environment."""
    installed = shutil.which("redis-server")
    if installed is not None:
        return installed, dict(os.environ)
    files = unpacked("redis", _PACKAGES)
    libraries = files / "usr" / "lib" / str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")
    return str(files / "usr" / "bin" / "redis-server"), {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
