"""What the store says of how a stream is to be delivered, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...committers.errors import ConfigurationError, ManifestCorruptError
from ..sinks.sink import Sink
from ..table_access import TableAccess

DECOUPLED = "decoupled"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A query's own words, as its newest start has left them in the store: no secret is among them."""

    delivery: str = ""
    checkpoint: str = ""
    """Its location; empty if the store does not know it."""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StreamSettings:
        """From the store's JSON; empty for streams that were never decoupled.

        Raises:
            ManifestCorruptError: it is no such JSON.
        """
        if not text:
            return cls()
        try:
            parsed = json.loads(text)
            return cls(str(parsed["delivery"]), str(parsed.get("checkpoint") or ""), dict(parsed["options"]))
        except (ValueError, TypeError, KeyError):
            raise ManifestCorruptError(
                "The settings of a stream in the manifest store are damaged. The next start of its query "
                "writes them anew."
            ) from None

    @property
    def is_decoupled(self) -> bool:
        return self.delivery == DECOUPLED


def build_sink(kind: str, settings: StreamSettings, access: TableAccess) -> Sink[Any]:
    """The sink that the query itself has, with the secrets of this process.

    Raises:
        ConfigurationError: the options do not fit this version of Penstock, or a kind it does not know.
    """
    if kind == "delta":
        from ..options.delta import DeltaOptions
        from ..sinks.delta import DeltaSink

        return DeltaSink(DeltaOptions.parse(_with(settings.options, "storage.", access.storage)))
    if kind == "iceberg":
        from ..options.iceberg import IcebergOptions
        from ..sinks.iceberg import IcebergSink

        return IcebergSink(IcebergOptions.parse(_with(settings.options, "catalog.", access.catalog)))
    raise ConfigurationError(
        f"The stream writes a table of kind {kind!r}, which this version of Penstock does not know. "
        "Run: pip install --upgrade penstock"
    )


def _with(options: Mapping[str, str], prefix: str, secrets: Mapping[str, str]) -> dict[str, str]:
    return {**options, **{f"{prefix}{key}": value for key, value in secrets.items()}}
