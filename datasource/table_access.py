"""Storage and catalog options that commands and the delivery process need to open a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..committers.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Options to open tables, in addition to their address. May contain secrets."""

    storage: dict[str, str] = field(repr=False)
    """Options of the object store of Delta tables."""
    catalog: dict[str, str] = field(repr=False)
    """Properties of the catalog of Iceberg tables, of Paimon tables in a REST catalog, or of the partitions
    of plain files.
    """

    @classmethod
    def parse(cls, storage: Sequence[str] | None, catalog: Sequence[str] | None) -> TableAccess:
        """Parse `KEY=VALUE` arguments.

        Raises:
            ConfigurationError: an argument has another form. The message shows no value, which may be a
                secret.
        """
        return cls(
            _pairs("--storage", "AWS_REGION=eu-west-1", storage or (), str.upper),
            _pairs("--catalog", "uri=https://catalog.example", catalog or (), str.lower),
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
