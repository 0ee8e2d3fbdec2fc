"""What the commands work on: the store that the user names, and its streams."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from ...committers.errors import ConfigurationError
from ...committers.safe_text import one_line
from ...committers.store.sql import SqlManifestStore, StreamStatus, open_store, sqlite_url
from ...writers.local_path import local_path
from ..checkpoint import STORE_FILE

SHORT_ID_CHARS = 8


# The store ------------------------------------------------------------------------------------------


def open_named_store(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    """The store of a checkpoint directory, or the one at a URL. It must be there.

    Raises:
        ConfigurationError: not exactly one of the two is given, or there is no store.
    """
    return open_store(url_of_store(checkpoint, store), must_exist=True)


def url_of_store(checkpoint: str | None, store: str | None) -> str:
    """The URL of the store of a checkpoint directory, or the one that is given.

    Raises:
        ConfigurationError: not exactly one of the two is given, or the directory has no store.
    """
    if (checkpoint is None) == (store is None):
        raise ConfigurationError(
            "Say where the manifest store is: with either --checkpoint DIR (the checkpoint of the query) "
            "or --store URL (the query's option `store`)" + ("." if store is None else ", not with both.")
        )
    return store or _store_in(checkpoint or "")


def _store_in(checkpoint: str) -> str:
    directory = local_checkpoint(checkpoint)
    path = posixpath.join(directory, STORE_FILE)
    if not Path(path).is_file():
        raise ConfigurationError(
            f"There is no manifest store {STORE_FILE} in {directory}. If the query has the option `store`, "
            "give its value with --store; otherwise check the directory."
        )
    return sqlite_url(path)


def local_checkpoint(checkpoint: str) -> str:
    """The path of a checkpoint directory on the local disk.

    Raises:
        ConfigurationError: it is not there, or not local.
    """
    directory = local_path(checkpoint)
    if directory is None:
        raise ConfigurationError(
            f"{checkpoint} is not on a local disk. Give the query's option `store` with --store instead."
        )
    if not Path(directory).is_dir():
        raise ConfigurationError(f"There is no checkpoint directory {directory}.")
    return directory


# Its streams ----------------------------------------------------------------------------------------


def short_id(query_id: str) -> str:
    return query_id[:SHORT_ID_CHARS]


def select(streams: Sequence[StreamStatus], text: str | None) -> list[StreamStatus]:
    """The streams that a word of the user means, or all of them.

    A query's name or id, or a table's location, means all streams that have it; the beginning of an id
    must mean one query.

    Raises:
        ConfigurationError: none, or the beginning of several ids; the message lists the candidates.
    """
    if text is None:
        return list(streams)
    exact = [stream for stream in streams if text in _words(stream)]
    if exact:
        return exact
    begun = [stream for stream in streams if stream.key.query_id.startswith(text)]
    if not begun:
        raise ConfigurationError(f"No stream {text!r} in the store.{_candidates(streams)}")
    if len({stream.key.query_id for stream in begun}) > 1:
        raise ConfigurationError(f"{text!r} is the beginning of several query ids.{_candidates(begun)}")
    return begun


def select_one(streams: Sequence[StreamStatus], text: str | None) -> StreamStatus:
    """The one stream that a word of the user means; without a word, the only stream of the store.

    Raises:
        ConfigurationError: none, or several; the message lists the candidates.
    """
    found = select(streams, text)
    if len(found) == 1:
        return found[0]
    what = "Say which stream" if text is None else f"{text!r} means several streams; give more"
    raise ConfigurationError(f'{what}: a query id, or "ID -> TABLE".{_candidates(found)}')


def is_named(stream: StreamStatus, text: str) -> bool:
    """Does a word of the user mean this stream, perhaps among others?"""
    return text in _words(stream) or stream.key.query_id.startswith(text)


def _words(stream: StreamStatus) -> tuple[str, ...]:
    named = (stream.query_name,) if stream.query_name else ()
    return (*named, stream.key.query_id, stream.key.table_uri, str(stream.key))


def _candidates(streams: Sequence[StreamStatus]) -> str:
    if not streams:
        return " It has no streams yet."
    lines = ["\n    " + one_line(f"{stream.key}  ({stream.query_name or 'no name'})") for stream in streams]
    return " Candidates:" + "".join(lines)
