"""The options of a plug-in: its own, and those that all streams have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TypeVar

from .common import STREAM_OPTIONS, DeliveryOptions, problems_of
from .parsing import Option, Prefix, check, parse_options, storable

OptionsT = TypeVar("OptionsT", bound=DeliveryOptions)


def with_stream_options(*own: Option) -> tuple[Option, ...]:
    """All options of a plug-in, for its `DestinationType`."""
    return (*own, *STREAM_OPTIONS)


def parse_stream_options(
    cls: type[OptionsT],
    name: str,
    options: Sequence[Option],
    given: Mapping[str, str],
    prefixes: Sequence[Prefix] = (),
) -> OptionsT:
    """What Spark hands over, as an object of `cls`; its fields without a default are mandatory.

    Args:
        name: of the data source, for messages
        options: from `with_stream_options`

    Raises:
        ConfigurationError: lists everything that is wrong, one sentence each.
    """
    values, problems = parse_options(options, prefixes, given)
    stored = storable(options, given)
    problems += problems_of(values, stored, prefixes)
    keys = {key.lower() for key in given}
    names = {option.field: option.name for option in options}
    problems += [
        f'{names[field.name]} is missing: give .option("{names[field.name]}", ...).'
        for field in fields(cls)
        if field.default is MISSING
        and field.default_factory is MISSING
        and names.get(field.name, "").lower() not in keys
    ]
    check(name, problems)
    return cls(**values, given=stored)
