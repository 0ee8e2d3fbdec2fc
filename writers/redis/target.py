"""The server, and the key of each row. The client library is loaded when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ...committers.texts.safe_text import get_logger
from ..requests.results import Failure, Fatal
from ..requests.template import Template

logger = get_logger(__name__)

Structure: TypeAlias = Literal["set", "hash", "stream", "list", "row"]
CONNECT_S = 10.0
CHECK_S = 20.0


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Where and how to write rows. Pickled to the executors, with the credentials."""

    host: str
    port: int
    database: int
    has_tls: bool
    structure: Structure
    key: Template
    hash_field: Template | None = None
    """Field of a hash."""
    length_max: int | None = None
    """Approximate length of a stream."""
    is_fenced: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def templates(self) -> list[Template]:
        return [self.key] if self.hash_field is None else [self.key, self.hash_field]

    @property
    def has_columns(self) -> bool:
        """True if rows may have different keys."""
        return bool(self.key.columns)

    def command(self, key: str, field: str | None, row_id: str, row: bytes) -> tuple[str | bytes | int, ...]:
        """Return the command that writes a row. For `row`, an example of one."""
        if self.structure == "set":
            return "SET", key, row
        if self.structure in ("hash", "row"):
            return "HSET", key, field or "", row
        if self.structure == "list":
            return "RPUSH", key, row
        trim = () if self.length_max is None else ("MAXLEN", "~", self.length_max)
        return "XADD", key, *trim, "*", "id", row_id, "row", row

    def deletion(self, key: str, field: str | None) -> tuple[str | bytes | int, ...]:
        """Return the command that deletes a row. Only for `set`, `hash` and `row`."""
        return ("HDEL", key, field or "") if self.structure == "hash" else ("DEL", key)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the client."""
        return {
            "host": self.host,
            "port": self.port,
            "db": self.database,
            "username": self.username,
            "password": self.password,
            "ssl": self.has_tls,
            "ssl_check_hostname": True,  # redis-py before version 6 does not
            "socket_connect_timeout": CONNECT_S,
        }

    def check(self, *commands: Sequence[str | bytes | int]) -> None:
        """Check that the server answers, and that the user may run the commands. They are not executed.

        Raises:
            AccessRefusedError: the user is unknown or lacks a permission.
            ConfigurationError: it is a cluster, or may evict the fence.
            RetryableError: the server does not answer.
        """
        try:
            asyncio.run(self._check(commands))
        except PenstockError:
            raise
        except Exception as error:
            raise self._refused(error) from error

    def run(self, *command: str) -> Any:
        """Run a command that concerns no row, and return the reply.

        Raises:
            AccessRefusedError: the user is unknown or lacks a permission.
            RetryableError: the server does not answer.
        """
        try:
            return asyncio.run(self._run(command))
        except Exception as error:
            result = _classified(error)
            message = f"Redis at {self.host}:{self.port} has not run {' '.join(command)}: "
            if isinstance(result, Fatal):
                raise result.error(f"{message}{result.code}. {result.message}") from error
            raise RetryableError(f"{message}{error}") from error

    async def _run(self, command: Sequence[str]) -> Any:
        from .connection import open_redis

        opening = open_redis(self.arguments, socket_timeout=CHECK_S, single_connection_client=True)
        async with opening as client:
            return await client.execute_command(*command)

    async def _check(self, commands: Sequence[Sequence[str | bytes | int]]) -> None:
        import redis

        from .connection import open_redis

        opening = open_redis(self.arguments, socket_timeout=CHECK_S, single_connection_client=True)
        async with opening as client:
            await client.ping()
            if await _is_cluster(client):
                raise redis.ResponseError("MOVED The server is a node of a cluster")
            await client.execute_command("MULTI")
            for command in commands:
                await client.execute_command(*command)
            await client.execute_command("DISCARD")
            if self.is_fenced:
                await _check_eviction(client)

    def _refused(self, error: Exception) -> PenstockError:
        result = _classified(error)
        message = f"Redis at {self.host}:{self.port} cannot be written: "
        if isinstance(result, Fatal):
            return result.error(f"{message}{result.code}. {result.message} Nothing was written.")
        return RetryableError(f"{message}{error}")


def _classified(error: Exception) -> Failure:
    from .errors import classify

    return classify(error)


async def _check_eviction(client: Any) -> None:
    """
    Raises:
        ConfigurationError: the server may evict the fence, so that rows that are sent again arrive twice.
    """
    import redis

    try:
        info: Any = await client.info("memory")
        limit, policy = int(info["maxmemory"]), str(info["maxmemory_policy"])
    except (redis.ResponseError, KeyError) as error:  # users may lack the permission, services may hide it
        logger.warning(
            "The maxmemory-policy of Redis cannot be read (%s). With an allkeys policy, Redis may evict the "
            "fence of exactlyOnce, and rows that are sent again arrive twice.",
            error,
        )
        return
    if limit and policy.startswith("allkeys-"):
        raise ConfigurationError(
            f"exactlyOnce cannot be kept with maxmemory-policy {policy}: Redis may evict the fence, and rows "
            "that are sent again would arrive twice. Set another one, for example: CONFIG SET "
            "maxmemory-policy noeviction. Nothing was written."
        )


async def _is_cluster(client: Any) -> bool:
    with suppress(Exception):  # users may lack the permission
        info: Any = await client.info("cluster")
        return bool(info.get("cluster_enabled"))
    return False
