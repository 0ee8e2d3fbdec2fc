"""Parsing of options: text to values, with all problems in one error.

Spark passes option names in lower case. They are compared without case, and shown in messages as documented.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...committers.errors import ConfigurationError, shown

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Option:
    """One documented option."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str
    is_secret: bool = False
    """True if the value may contain a password, and must not be stored."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A family of options that are passed on: `storage.aws_region` as AWS_REGION."""

    name: str
    field: str
    spell: Callable[[str], str]
    help: str


def parse_options(
    known: Sequence[Option], prefixes: Sequence[Prefix], options: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values by field, and the problems, one sentence each."""
    by_name = {option.name.lower(): option for option in known}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, given in options.items():
        option = by_name.get(key.lower())
        prefix = next((prefix for prefix in prefixes if key.lower().startswith(prefix.name.lower())), None)
        if problem := text_problem(key + given):
            problems.append(f"{option.name if option else shown(key)} {problem}.")
        elif prefix is not None:
            values.setdefault(prefix.field, {})[prefix.spell(key[len(prefix.name) :])] = given
        elif option is None:
            problems.append(_unknown(key, known))
        else:
            try:
                values[option.field] = option.parse(given)
            except ValueError as error:
                value = "" if option.is_secret else f"={shown(given)}"
                problems.append(f"{option.name}{value}: {error}.")
            except ConfigurationError as error:
                problems.append(str(error))
    return values, problems


def without_refused(
    given: Mapping[str, str], refused: Mapping[str, str] | None
) -> tuple[dict[str, str], list[str]]:
    """Return the other options, and the problems of those that are refused.

    Args:
        refused: problems by name
    """
    problems = {name.lower(): problem for name, problem in (refused or {}).items()}
    kept = {key: value for key, value in given.items() if key.lower() not in problems}
    return kept, [problems[key.lower()] for key in given if key not in kept]


def storable(known: Sequence[Option], options: Mapping[str, str]) -> dict[str, str]:
    """Return the given values of documented options that are not secret, by their documented names.

    Options with a prefix are never included.
    """
    by_name = {option.name.lower(): option.name for option in known if not option.is_secret}
    return {by_name[key.lower()]: given for key, given in options.items() if key.lower() in by_name}


def not_storable(known: Sequence[Option], options: Mapping[str, str]) -> list[str]:
    """Return the keys that `storable` leaves out."""
    names = {option.name.lower() for option in known if not option.is_secret}
    return [key for key in options if key.lower() not in names]


def text_problem(text: str) -> str | None:
    """Return the problem of a text that no path, name or database accepts; None if there is none."""
    if "\0" in text:
        return "must not contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not contain an unpaired surrogate (half a character)"
    return None


def check(name: str, problems: Sequence[str]) -> None:
    """Raise an error for all problems with the options of the sink `name`, if there are any.

    Raises:
        ConfigurationError: lists all problems.
    """
    if problems:
        raise ConfigurationError(f"Options of {name}:\n  - " + "\n  - ".join(problems))


def _unknown(key: str, known: Sequence[Option]) -> str:
    by_name = {option.name.lower(): option for option in known}
    near = difflib.get_close_matches(key.lower(), by_name, n=1)
    hint = (
        f" Did you mean {by_name[near[0]].name}?"
        if near
        else f" Known: {', '.join(option.name for option in known)}."
    )
    name = _other_names().get(key.lower())
    if name is not None:
        return f"{name} is not an option here.{hint}"
    return f"{key} is not an option (Spark passes option names in lower case).{hint}"


def _other_names() -> dict[str, str]:
    """Return the documented option names of all built-in destinations, by name in lower case."""
    from ..plug_ins import BUILT_IN, load

    return {one.name.lower(): one.name for kind in BUILT_IN.values() for one in load(kind).options}


# Parsers: text to value, or ValueError with the end of a sentence ------------------------------------------


def text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low:,} to {high:,}")
        return int(text)

    return parse


def size(low: int, high: int) -> Callable[[str], int]:
    units = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)", text.strip().lower())
        if not match or match[2] not in units:
            raise ValueError("must be a size such as 128mb, 1g or a number of bytes")
        size = int(float(match[1]) * units[match[2]])
        if not low <= size <= high:
            raise ValueError(f"must be between {low:,} and {high:,} bytes")
        return size

    return parse


def columns(text: str) -> tuple[str, ...]:
    """Parse `a, b` or, for names with commas, a JSON array."""
    if text.lstrip().startswith("["):
        names = _json(text)
        if not isinstance(names, list) or not _are_strings(names):
            raise ValueError("must be an array of column names")
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("must name at least one column")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("names a column twice")
    return tuple(names)


def renames(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `old:new, struct.old:new`."""
    pairs = []
    for part in filter(None, map(str.strip, text.split(","))):
        old, colon, new = (one.strip() for one in part.partition(":"))
        if not (colon and old and new) or ":" in new:
            raise ValueError("must be pairs of names such as old:new, struct.old:new")
        if "." in new:
            raise ValueError(f"must have a new name without dots, not {new!r}: a column stays in its struct")
        pairs.append((old, new))
    if not pairs:
        raise ValueError("must name at least one column")
    if len(dict(pairs)) < len(pairs):
        raise ValueError("names a column twice")
    return tuple(pairs)


def properties(text: str) -> dict[str, str]:
    """Parse a JSON object, because table properties must keep their case and Spark lowers option names."""
    parsed = _json(text)
    if not isinstance(parsed, dict) or not _are_strings([*parsed, *parsed.values()]):
        raise ValueError("""must be a JSON object of strings, such as {"delta.appendOnly": "true"}""")
    return parsed


def _json(text: str) -> Any:
    """Parse JSON; None if it is not valid, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_strings(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) and text_problem(value) is None for value in values)


def one_of(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.strip().lower() not in {choice.lower() for choice in choices}:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return next(value for choice, value in choices.items() if choice.lower() == text.strip().lower())

    return parse


def duration_s(text: str) -> float:
    """Parse `90s`, `30min`, `12h`, `7d` to seconds."""
    units = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    match = re.fullmatch(r"([0-9]{1,9})\s*(s|min|h|d)", text.strip().lower())
    if match is None:
        raise ValueError("must be a time such as 90s, 30min, 12h or 7d")
    return float(int(match[1]) * units[match[2]])
