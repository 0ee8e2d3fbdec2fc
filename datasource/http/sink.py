"""The destination `penstock.http`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError, shown
from ...committers.requests.content import RequestManifests
from ...writers.http.requests import HttpRequests
from ..destinations import DestinationType, with_prefix
from ..requests.sink import RequestSink
from ..requests.stored import StoredRequests
from .options import OPTIONS, HttpOptions, address_of, require_client

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ..table_access import TableAccess

KIND = "http"

_SECRETS = ("bearertoken", "username", "password")


def sink_of(options: HttpOptions) -> RequestSink:
    settings = options.writer_settings
    if options.format == "row":
        settings = replace(settings, limits=replace(settings.limits, batch_entries_max=1))
    requests = HttpRequests(options.target, settings, options.id_column)
    return RequestSink(KIND, options.url, options, requests)


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> RequestSink:
    """Return the sink of a stream, with the secrets of this process if they are for its URL."""
    require_client()
    secrets, storage = _secrets(access.storage)
    given = with_prefix("storage.", options, storage)
    return sink_of(HttpOptions.parse({**given, **(secrets if _are_for(stream, secrets, access) else {})}))


def _secrets(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the secrets of HTTP endpoints, and the options of the object store."""
    secrets, storage = {}, {}
    for key, value in given.items():
        name = key.lower()
        if name in _SECRETS or name.startswith("header."):
            secrets[name] = value
        elif name != "url":
            storage[key] = value
    return secrets, storage


def _are_for(stream: StreamKey, secrets: Mapping[str, str], access: TableAccess) -> bool:
    """Return True if the secrets may be sent to the stream's URL, which only the store names.

    Raises:
        ConfigurationError: it is not given for which URL they are.
    """
    if not secrets:
        return False
    url = next((value for key, value in access.storage.items() if key.lower() == "url"), None)
    if url is None:
        raise ConfigurationError(
            f"The manifest store says that the stream goes to {shown(stream.table_uri)}, to which the given "
            "headers or credentials would be sent. Nothing was sent. Say for which endpoint they are: "
            "--storage url=https://api.example.com/. They are sent to URLs below it, and to no others."
        )
    try:
        allowed = address_of(url)
    except ValueError as error:
        raise ConfigurationError(f"--storage url={shown(url)}: {error}.") from None
    return stream.table_uri == allowed or stream.table_uri.startswith(f"{allowed.rstrip('/')}/")


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.http.source:HttpDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredRequests(KIND, stream.table_uri, _secrets(access.storage)[1]),
    files_of=RequestManifests(KIND).files,
)
