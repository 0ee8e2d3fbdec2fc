"""The object store of a Delta table, by `obstore`.

That is the Python face of the client that the Delta library has inside: it takes the same options, and leaves
Python's lock to others while it waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig, S3Config

_Frozen: TypeAlias = tuple[tuple[str, str], ...]

_OF_THE_LIBRARY = (
    "locking_provider",
    "unsafe_rename",
    "copy_if_not_exists",
    "conditional_put",
    "iam_role_arn",
    "iam_role_session_name",
    "assume_role_arn",
)
"""Ends of options that only the Delta library knows: other ways to commit, and roles that it takes."""

_PROFILE = ("aws_profile", "aws_default_profile", "aws_config_file", "aws_shared_credentials_file")
_CREDENTIALS = (
    "aws_access_key_id",
    "access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
)
"""Where this client looks for them, as the library does: a key; the role of a pod or container."""


def open_object_store(table_uri: str, storage_options: Mapping[str, str]) -> ObjectStore | None:
    """The store, with the table as its root; None if only the Delta library knows how to get there.

    One for each process, table and options: connections stay open from batch to batch. Runs anywhere.

    Args:
        storage_options: as the Delta library takes them; those that are missing come from the environment
    """
    if urlsplit(table_uri).scheme not in ("s3", "s3a") or not _is_for_this_client(storage_options):
        return None
    environment = {name: value for name, value in os.environ.items() if name.upper().startswith("AWS_")}
    return _open_s3(table_uri, _frozen(storage_options), _frozen(environment), os.getpid())


@contextmanager
def errors_of_the_system() -> Iterator[None]:
    """Errors of the client as those of a file system, in its words, without its internals."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error).partition("\n\nDebug source")[0]) from None


def _is_for_this_client(storage_options: Mapping[str, str]) -> bool:
    """Would it act as the library does, and as the same user? A profile or a machine's role it never is."""
    told = {name.lower() for name in (*storage_options, *os.environ)}
    if any(name.endswith(_OF_THE_LIBRARY) for name in told):
        return False
    found = next((name for name in _CREDENTIALS if name in told), None)
    return found is not None and ("access_key" in found or not _has_profile(told))


def _has_profile(told: set[str]) -> bool:
    if not told.isdisjoint(_PROFILE):
        return True
    try:
        folder = Path.home() / ".aws"
    except RuntimeError:  # a container's user need not have one
        return False
    return (folder / "config").exists() or (folder / "credentials").exists()


def _frozen(options: Mapping[str, str]) -> _Frozen:
    return tuple(sorted(options.items()))


@lru_cache(maxsize=16)
def _open_s3(
    table_uri: str, storage_options: _Frozen, _environment: _Frozen, _process: int
) -> ObjectStore | None:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    bucket, _, prefix = table_uri.partition("://")[2].partition("/")
    config = {name.lower(): value for name, value in storage_options}
    retry = {"max_retries": int(config.pop("max_retries"))} if "max_retries" in config else {}
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=cast("S3Config", config),
            retry_config=cast("RetryConfig", retry),
        )
    except BaseError:  # such as half a key: the library says so, in its own words
        return None
