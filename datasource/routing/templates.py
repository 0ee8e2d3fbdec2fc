"""Options with templates: `/lake/{tenant}/{kind}` stands for one table for each tenant and kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from ...writers.row_log.route_names import Route
from ..options.declaring import options_of
from ..options.delivery import DeliveryOptions

_OF_THE_QUERY = frozenset(option.name.lower() for option in options_of(DeliveryOptions))
_PREFIXES = ("deadletter.", "storage.", "catalog.")


@dataclass(frozen=True, slots=True)
class Templates:
    """The options of a destination that contain `{column}` for a route column."""

    columns: tuple[str, ...]
    given: Mapping[str, str] = field(repr=False)
    """All options of the query, by their names in lower case. Some may be secrets."""

    @property
    def _texts(self) -> dict[str, str]:
        return {
            key: text
            for key, text in self.given.items()
            if key not in _OF_THE_QUERY
            and not key.startswith(_PREFIXES)
            and any(_placeholder(name) in text for name in self.columns)
        }

    def filled(self, route: Route) -> dict[str, str]:
        """Return the options of one table."""
        filled = dict(self.given)
        for key, text in self._texts.items():
            is_url = key.endswith("url")
            for name, value in zip(self.columns, route, strict=True):
                text = text.replace(_placeholder(name), quote(value, safe="") if is_url else value)
            filled[key] = text
        return filled

    @property
    def sample(self) -> Route:
        """A route with texts that every destination accepts, and that no option has."""
        return tuple(f"penstockroute{number}x" for number in range(len(self.columns)))

    def of_sample(self, text: str) -> str:
        """Return the template for a text that was made with `sample`."""
        for name, value in zip(self.columns, self.sample, strict=True):
            text = text.replace(value, _placeholder(name))
        return text

    def unnamed(self, address: str) -> list[str]:
        """Return the route columns that make no difference to the address of a table.

        Args:
            address: of the sample
        """
        return [name for name, value in zip(self.columns, self.sample, strict=True) if value not in address]


def _placeholder(column: str) -> str:
    return f"{{{column}}}"
