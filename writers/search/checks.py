"""Checks of an index before any row moves. Runs on the driver."""

from __future__ import annotations

from typing import Any

from ...committers.dry_runs import before_creating
from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ..requests.results import Failure, Fatal, Retry
from .target import SearchTarget

CHECK_S = 20.0
"""Time-out of a request."""


async def check_index(client: Any, target: SearchTarget) -> None:
    """Check that index and pipeline exist, and create the index if that is allowed.

    Args:
        client: of the library; both libraries have the same methods

    Raises:
        ConfigurationError: one does not exist, or the index does not take the operation.
        Exception: of the library
    """
    if not await client.indices.exists(index=target.index):
        if target.creates_index:
            before_creating(f"index {target.index}")
        if not target.creates_index:
            raise ConfigurationError(
                f"The index {target.index} does not exist at {target.url}. Create it with a mapping for the "
                'columns, or set .option("createIndex", "true"). Nothing was written.'
            )
        await _create(client, target.index)
    if target.operation == "index" and await _belongs_to_data_stream(client, target.index):
        raise ConfigurationError(
            f"{target.index} is or belongs to a data stream, which only accepts new documents. Set "
            '.option("operation", "create"). Nothing was written.'
        )
    if target.pipeline is not None and not await _has_pipeline(client, target.pipeline):
        raise ConfigurationError(
            f"The ingest pipeline {target.pipeline} does not exist at {target.url}. Create it, or check the "
            "option pipeline. Nothing was written."
        )


def refused(target: SearchTarget, result: Failure) -> PenstockError:
    """Return the error of a check that failed with this result."""
    message = f"The index {target.index} at {target.url} cannot be checked: "
    if isinstance(result, Fatal):
        return result.error(f"{message}{result.code}. {result.message} Nothing was written.")
    if isinstance(result, Retry):
        return RetryableError(f"{message}{result.code}. {result.message}")
    return ConfigurationError(f"{message}{result}")


async def _create(client: Any, index: str) -> None:
    """Create the index, unless another query has created it meanwhile."""
    try:
        await client.indices.create(index=index)
    except Exception:
        if not await client.indices.exists(index=index):
            raise


async def _belongs_to_data_stream(client: Any, name: str) -> bool:
    """The name of a data stream, of an alias of one, or of an index of one."""
    return bool(dict(await client.indices.get(index=name, filter_path="*.data_stream")))


async def _has_pipeline(client: Any, pipeline: str) -> bool:
    try:
        await client.ingest.get_pipeline(id=pipeline)
    except Exception as error:
        if getattr(error, "status_code", None) == 404:
            return False
        raise
    return True
