"""What request-based destinations have in common, from the options of a query to a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...committers.errors import ConfigurationError, check_installed, shown
from ...committers.requests.content import RequestManifests
from ..destinations import DestinationType, QueryRecords, with_prefix
from ..options.declaring import options_of, prefixes_of
from .options import RequestOptions
from .sink import RequestSink
from .stored import StoredRequests

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ...committers.requests.contract import Requests
    from ..options.parsing import Option
    from ..stored.table_access import TableAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """One request-based destination. Made once, when its module is imported."""

    kind: str
    options: type[RequestOptions]
    requests: Callable[[Any], Requests]
    """Returns how rows become requests, from the parsed options."""
    library: str
    """The module of the client library."""
    package: str
    """What pip installs it with, such as `penstock[http]`."""
    records: Callable[[StreamKey, Any], QueryRecords] | None = None
    """See `DestinationType`."""
    secrets_are_for: str | None = None
    """The option with the URL to which secrets are sent. None: secrets sign requests and are never sent."""

    def sink(self, options: Mapping[str, str]) -> RequestSink:
        """Return the sink for the options of a query.

        Raises:
            ConfigurationError: lists everything that is wrong with the options, or the client library is not
                installed.
        """
        check_installed(f"{self.options.NAME} needs", self.library, self.package)
        parsed = self.options.parse(options)
        return RequestSink(self.kind, parsed.address, parsed, self.requests(parsed))

    def destination(self, data_source: str) -> DestinationType:
        """
        Args:
            data_source: see `DestinationType`
        """
        return DestinationType(
            kind=self.kind,
            data_source=data_source,
            options=options_of(self.options),
            sink=self._sink_of,
            stored_table=lambda stream, access: StoredRequests(
                self.kind, stream.table_uri, self._split(access)[1]
            ),
            files_of=RequestManifests(self.kind).files,
            records=self.records,
            has_row_log=True,
            extra=self.package.partition("[")[2].rstrip("]"),
        )

    def _sink_of(self, stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> RequestSink:
        """Return the sink of a stream, with the secrets of this process if they are for its destination."""
        secrets, storage = self._split(access)
        given = with_prefix("storage.", options, storage)
        return self.sink({**given, **(secrets if self._are_for(options, secrets, access) else {})})

    def _split(self, access: TableAccess) -> tuple[dict[str, str], dict[str, str]]:
        """Return the secrets of the destination, and the options of the object store."""
        of_all = {option.name for option in options_of(RequestOptions)}
        own = [one for one in options_of(self.options) if one.name not in of_all]
        names = {one.name.lower() for one in own if one.is_secret}
        prefixes = {prefix.name for prefix in prefixes_of(self.options)} - {
            prefix.name for prefix in prefixes_of(RequestOptions)
        }
        secrets, storage = {}, {}
        for key, value in access.storage.items():
            name = key.lower()
            if name in names or name.startswith(tuple(prefixes)):
                secrets[name] = value
            elif self.secrets_are_for is None or name != self.secrets_are_for.lower():
                storage[key] = value
        return secrets, storage

    def _are_for(self, options: Mapping[str, str], secrets: Mapping[str, str], access: TableAccess) -> bool:
        """Return True if the secrets may be sent to the URL of the stream, which only the store names.

        Raises:
            ConfigurationError: it is not given for which URL they are.
        """
        if not secrets or self.secrets_are_for is None:
            return bool(secrets)
        url_option = self._option(self.secrets_are_for)
        stored = options.get(url_option.name)
        if stored is None:  # it is a secret itself: this process names it
            return True
        url = access.url
        if url is None:
            key = url_option.name.lower()
            url = next((value for name, value in access.storage.items() if name.lower() == key), None)
        if url is None:
            raise ConfigurationError(
                f"The manifest store says that the stream goes to {shown(stored)}, to which the given "
                "headers or credentials would be sent. Nothing was sent. Say for which endpoint they are: "
                f"--storage {url_option.name}={self.options.REQUIRED[url_option.name]}, or url in the entry "
                "of the stream in the options file. They are sent to URLs below it, and to no others."
            )
        try:
            target = str(url_option.parse(stored))
        except ValueError as error:
            raise ConfigurationError(
                f"The {url_option.name} of the stream in the manifest store, {shown(stored)}, {error}."
            ) from None
        try:
            allowed = str(url_option.parse(url))
        except ValueError as error:
            raise ConfigurationError(f"--storage {url_option.name}={shown(url)}: {error}.") from None
        return target == allowed or target.startswith(f"{allowed.rstrip('/')}/")

    def _option(self, name: str) -> Option:
        return next(option for option in options_of(self.options) if option.name == name)
