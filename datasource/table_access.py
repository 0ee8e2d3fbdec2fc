"""What opens a stream's table beside its address: for the commands and the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..committers.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TableAccess:
    """What opens the tables beside their address. May hold secrets."""

    storage: dict[str, str] = field(repr=False)
    """For the object store of Delta tables."""
    catalog: dict[str, str] = field(repr=False)
    """Properties of the catalog of Iceberg tables."""

    @classmethod
    def parse(cls, storage: Sequence[str] | None, catalog: Sequence[str] | None) -> TableAccess:
        """From `KEY=VALUE` texts.

        Raises:
            ConfigurationError: shows no value: it may be a secret.
        """
        return cls(
            _pairs("--storage", "AWS_REGION=eu-west-1", storage or (), str.upper),
            _pairs("--catalog", "uri=https://catalog.example", catalog or (), str.lower),
        )


def _pairs(option: str, example: str, texts: Sequence[str], spell: Callable[[str], str]) -> dict[str, str]:
    """The last one of a key counts, however it is spelled."""
    for number, text in enumerate(texts, 1):
        if not text.partition("=")[0].strip() or "=" not in text:
            raise ConfigurationError(
                f"{option} takes KEY=VALUE, for example {option} {example}; number {number} of them is none."
            )
    return {spell(key.strip()): value for key, _, value in (text.partition("=") for text in texts)}
