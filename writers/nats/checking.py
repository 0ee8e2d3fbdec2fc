"""Looks at the streams that take the messages, before any row moves."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any

from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ...committers.texts.safe_text import get_logger
from ..requests.results import Fatal
from .errors import classify
from .target import NatsTarget, close

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import StreamConfig

logger = get_logger(__name__)

CHECK_S = 5.0
_WARNED: deque[str] = deque(maxlen=100)


def check_streams(target: NatsTarget, replay_s: float) -> None:
    """Check that streams acknowledge the messages, and recognize those that are sent again.

    Args:
        replay_s: how long a message may be sent again

    Raises:
        AccessRefusedError: the user is unknown or lacks a permission.
        ConfigurationError: no stream takes the subject, or it cannot keep what the options promise.
        RetryableError: no server answers.
    """
    try:
        configs = asyncio.run(_streams(target))
        _check(target, configs, replay_s)
    except PenstockError:
        raise
    except Exception as error:
        raise _refused(target, error) from error


async def _streams(target: NatsTarget) -> list[StreamConfig]:
    """Return the streams that take a subject of the target."""
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    async def ignore() -> None: ...

    client = await target.connect(note, ignore)
    try:
        return [await _config(client, name) for name in await _names(client, target.subjects)]
    except Exception as error:
        raise (errors or [client.last_error or error])[
            -1
        ] from error  # what the user may not ask is not answered
    finally:
        await close(client)


async def _names(client: Client, subjects: str) -> list[str]:
    request = json.dumps({"subject": subjects}).encode()
    response: Any = json.loads((await client.request("$JS.API.STREAM.NAMES", request, timeout=CHECK_S)).data)
    if "error" in response:
        from nats.js.errors import APIError

        APIError.from_error(response["error"])
    return sorted(response.get("streams") or ())


async def _config(client: Client, name: str) -> StreamConfig:
    return (await client.jetstream(timeout=CHECK_S).stream_info(name)).config


def _check(target: NatsTarget, streams: list[StreamConfig], replay_s: float) -> None:
    names = [str(stream.name) for stream in streams]
    subjects = target.subjects
    if target.expected_stream is not None and target.expected_stream not in names:
        raise ConfigurationError(
            f"The stream {target.expected_stream} does not exist or does not take the subject {subjects}"
            f"{', which these do: ' + ', '.join(names) if names else ''}. Correct expectedStream or "
            "subject, or the subjects of the stream. Nothing was written."
        )
    if not streams:
        raise ConfigurationError(
            f"No stream of JetStream takes the subject {subjects}. Create one: nats stream add NAME "
            f"--subjects '{subjects}' --dupe-window 1h. Nothing was written."
        )
    for stream in streams:
        if target.expected_stream in (None, stream.name):
            _check_one(target, stream, replay_s)


def _check_one(target: NatsTarget, stream: StreamConfig, replay_s: float) -> None:
    if stream.no_ack:
        raise ConfigurationError(
            f"The stream {stream.name} does not acknowledge messages (no_ack), so that no row would be known "
            "to have arrived. Turn it off: nats stream edit --ack. Nothing was written."
        )
    if stream.sealed:
        raise ConfigurationError(f"The stream {stream.name} is sealed. Choose another one.")
    if stream.duplicate_window >= replay_s:
        return
    problem = (
        f"The stream {stream.name} recognizes a message that is sent again for {stream.duplicate_window:g} s "
        f"(duplicate_window), and rows may be sent again for {replay_s:g} s (retryFor and requestTimeout): "
        f"some could arrive twice. Extend it: nats stream edit {stream.name} --dupe-window {replay_s:g}s; or "
        "shorten retryFor."
    )
    if target.is_exactly_once:
        raise ConfigurationError(f"exactlyOnce: {problem} Nothing was written.")
    if problem not in _WARNED:
        _WARNED.append(problem)
        logger.warning("%s", problem)


def _refused(target: NatsTarget, error: Exception) -> PenstockError:
    result = classify(error)
    message = f"NATS at {', '.join(target.servers)} cannot be written: "
    if isinstance(result, Fatal):
        return result.error(f"{message}{result.message} Nothing was written.")
    return RetryableError(f"{message}{error}")
