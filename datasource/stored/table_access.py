"""Storage and catalog options that commands and the delivery process need to open a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...committers.errors import ConfigurationError, shown
from ...committers.texts.safe_text import has_credentials

STREAMS_EXAMPLE = '{"flights": {"url": "postgresql://...", "storage": {...}, "catalog": {...}}}'


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Options to open tables, in addition to their address. May contain secrets."""

    storage: dict[str, str] = field(repr=False)
    """Options of the object store of Delta tables."""
    catalog: dict[str, str] = field(repr=False)
    """Properties of the catalog of Iceberg tables, of Paimon tables in a REST catalog, or of the partitions
    of plain files.
    """
    url: str | None = field(default=None, repr=False)
    """The server to which the credentials of the stream may be sent, for Postgres with user and password.
    Only in the result of `access_of`.
    """
    streams: Mapping[str, StreamAccess] = field(default_factory=dict, repr=False)
    """Options for single streams or destinations. See `access_of`."""

    @classmethod
    def parse(
        cls,
        storage: Sequence[str] | None,
        catalog: Sequence[str] | None,
        streams: Mapping[str, StreamAccess] | None = None,
    ) -> TableAccess:
        """Parse `KEY=VALUE` arguments.

        Raises:
            ConfigurationError: an argument has another form. The message shows no value, which may be a
                secret.
        """
        return cls(
            _pairs("--storage", "AWS_REGION=eu-west-1", storage or (), str.upper),
            _pairs("--catalog", "uri=https://catalog.example", catalog or (), str.lower),
            streams=streams or {},
        )

    @classmethod
    def given(
        cls,
        storage: Mapping[str, str] | None,
        catalog: Mapping[str, str] | None,
        streams: Mapping[str, Mapping[str, Any]] | None,
        caller: str,
    ) -> TableAccess:
        """Return the arguments of a function with this name.

        Raises:
            ConfigurationError: an entry of `streams` has another form.
        """
        return cls(
            {key.upper(): value for key, value in (storage or {}).items()},
            {key.lower(): value for key, value in (catalog or {}).items()},
            streams=StreamAccess.parse_all(streams or {}, caller),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `of_json` parses, for another process. Contains secrets."""
        streams = {name: entry.to_json() for name, entry in self.streams.items()}
        return {"storage": dict(self.storage), "catalog": dict(self.catalog), "streams": streams}

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> TableAccess:
        """Return the options for all streams from the result of `to_json`."""
        streams = StreamAccess.parse_all(given["streams"], "stdin")
        return cls(dict(given["storage"]), dict(given["catalog"]), streams=streams)

    def for_object_store(self, options: Collection[str]) -> dict[str, str]:
        """Return the storage options without those of a destination, such as its credentials.

        Args:
            options: names of all options of the destination, in lower case
        """
        return {
            key: value for key, value in self.storage.items() if "." not in key and key.lower() not in options
        }


@dataclass(frozen=True, slots=True)
class StreamAccess:
    """Options for a stream, or for all streams to a destination. They override those for all streams."""

    storage: dict[str, str] = field(repr=False)
    catalog: dict[str, str] = field(repr=False)
    url: str | None = field(repr=False)
    """See `TableAccess`."""

    @classmethod
    def parse_all(cls, given: object, where: str) -> dict[str, StreamAccess]:
        """Parse the entries of `streams`, by the name or address of a stream, or the beginning of an address.

        Args:
            given: JSON, or what a caller has passed
            where: such as "the options file /etc/penstock/options.json", for messages

        Raises:
            ConfigurationError: an entry has another form. The message shows no value, which may be a secret.
        """
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ConfigurationError(f"`streams` in {where} must be an object such as {STREAMS_EXAMPLE}.")
        return {name: cls._parse(name, entry, where) for name, entry in given.items()}

    @classmethod
    def _parse(cls, name: str, entry: object, where: str) -> StreamAccess:
        if not name.strip() or has_credentials(name):
            raise ConfigurationError(
                f"A name of an entry of `streams` in {where} is empty, or contains a password. It must be "
                "the name of a query or target, a query id, a table, or the beginning of an address, such "
                "as postgresql://db.example:5432."
            )
        wrong = f"The entry {shown(name)} of `streams` in {where}"
        if not isinstance(entry, Mapping) or not entry.keys() <= {"url", "storage", "catalog"}:
            raise ConfigurationError(
                f"{wrong} must be an object with url, storage and catalog, or some of them, and nothing "
                f"else: {STREAMS_EXAMPLE}. User and password of Postgres are parts of url."
            )
        url, pairs = entry.get("url"), {key: entry.get(key, {}) for key in ("storage", "catalog")}
        if not (url is None or isinstance(url, str)) or not all(map(_are_strings, pairs.values())):
            raise ConfigurationError(
                f"{wrong} has a value of another type: url must be a string, storage and catalog objects of "
                "strings."
            )
        storage = {key.upper(): value for key, value in pairs["storage"].items()}
        of_storage = storage.pop("URL", None)
        if url is not None and of_storage is not None:
            raise ConfigurationError(f"{wrong} has a url both in itself and in its storage. Remove one.")
        catalog = {key.lower(): value for key, value in pairs["catalog"].items()}
        return cls(storage, catalog, of_storage if url is None else url)

    def to_json(self) -> dict[str, Any]:
        """Return what `parse_all` parses. Contains secrets."""
        url = {} if self.url is None else {"url": self.url}
        return {"storage": self.storage, "catalog": self.catalog, **url}


def _are_strings(given: object) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(key, str) and key.strip() and isinstance(value, str) for key, value in given.items()
    )


def _pairs(option: str, example: str, texts: Sequence[str], spell: Callable[[str], str]) -> dict[str, str]:
    """Parse pairs. The last value of a key counts; `spell` normalizes keys."""
    for number, text in enumerate(texts, 1):
        if not text.partition("=")[0].strip() or "=" not in text:
            raise ConfigurationError(
                f"{option} takes KEY=VALUE, for example {option} {example}. The value of {option} number "
                f"{number} is not of this form."
            )
    return {spell(key.strip()): value for key, _, value in (text.partition("=") for text in texts)}
