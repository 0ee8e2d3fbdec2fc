"""Parsing of a plug-in's options: its own, and those of all destinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TypeVar

from .declaring import options_of, prefixes_of
from .delivery import DeliveryOptions
from .parsing import check, parse_options, storable
from .stream import problems_of

OptionsT = TypeVar("OptionsT", bound=DeliveryOptions)


def parse_as(cls: type[OptionsT], name: str, given: Mapping[str, str]) -> OptionsT:
    """Parse the options that Spark passes to an object of `cls`. Fields without a default are required.

    Args:
        cls: declares the options, see `declaring`
        name: name of the data source, for messages

    Raises:
        ConfigurationError: lists all problems, one sentence each.
    """
    options, prefixes = options_of(cls), prefixes_of(cls)
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
