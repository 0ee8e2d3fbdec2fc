"""Options as fields of a frozen dataclass. Each is declared once, with name, parser, default and meaning.

    buffer_bytes_max: int = option("bufferSize", size(MIB, GIB), "What one task buffers.", default="128mb")

A default is written as in a query. It is parsed like a given value, and shown in the documentation. Layers of
options are base classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from .parsing import Option, Prefix

T = TypeVar("T")

_KEY = "option"


def option(name: str, parse: Callable[[str], T], meaning: str, *, default: str) -> T:
    """Declare a field whose default is the parsed text."""
    shown = Option(name, "", parse, f"{meaning} Default `{default}`.")
    return field(default=parse(default), metadata={_KEY: shown})


def optional(
    name: str, parse: Callable[[str], T], meaning: str, *, default: str = "", is_secret: bool = False
) -> T | None:
    """Declare a field that is None if the option is not given.

    Args:
        default: what None means, as text
        is_secret: see `Option`
    """
    shown = Option(name, "", parse, f"{meaning} Default: {default}." if default else meaning, is_secret)
    return cast("T | None", field(default=None, repr=not is_secret, metadata={_KEY: shown}))


def declared(
    name: str, parse: Callable[[str], object], meaning: str, *, is_secret: bool = False
) -> Mapping[str, Any]:
    """Return metadata for the `field` of an option that is required, or whose default is not a text."""
    return {_KEY: Option(name, "", parse, meaning, is_secret)}


def option_of(layer: type, name: str) -> Any:
    """Declare a field that is the same option as a field of another class, with its default."""
    (other,) = [one for one in fields(layer) if one.name == name]
    if other.default is MISSING:
        return field(default_factory=other.default_factory, repr=other.repr, metadata=other.metadata)
    return field(default=other.default, repr=other.repr, metadata=other.metadata)


def passed_on(prefix: str, spell: Callable[[str], str], meaning: str) -> Mapping[str, str]:
    """Declare a field for all options with a prefix. They may be secrets: never shown or stored."""
    shown = Prefix(prefix, "", spell, meaning)
    return cast("Mapping[str, str]", field(default_factory=dict, repr=False, metadata={_KEY: shown}))


def options_of(layers: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares: its own, then those of its bases."""
    return tuple(known for known in _declared(layers) if isinstance(known, Option))


def prefixes_of(layers: type) -> tuple[Prefix, ...]:
    """Return the prefixes that a dataclass declares."""
    return tuple(known for known in _declared(layers) if isinstance(known, Prefix))


@cache
def _declared(layer: type) -> tuple[Option | Prefix, ...]:
    """Options of a layer, its own first. What it declares again, with another default, is its own. Of two
    bases that declare a field, the first one counts.

    Raises:
        TypeError: a field has the name of a base's field and is another option, which would be lost.
    """
    bases = [base for base in layer.__bases__ if is_dataclass(base)]
    inherited = [one for base in bases for one in fields(base)]
    own = [one for one in fields(layer) if _KEY in one.metadata and one not in inherited]
    shown: list[Option | Prefix] = [replace(one.metadata[_KEY], field=one.name) for one in own]
    of_own = {one.field: one.name for one in shown}
    of_bases = [known for base in bases for known in _declared(base)]
    for known in of_bases:
        if of_own.get(known.field, known.name) != known.name:
            raise TypeError(
                f"{layer.__name__}.{known.field} is the option {of_own[known.field]}, and in a base class "
                f"the option {known.name}. Give the field another name."
            )
    first: dict[str, Option | Prefix] = {}
    for known in of_bases:
        first.setdefault(known.field, known)
    return (*shown, *(known for of_field, known in first.items() if of_field not in of_own))
