"""Options for rows that the destination refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...committers.dead_letters import BadRows, DeadLetterMax
from .declaring import option, optional, passed_on
from .parsing import one_of, text

DEFAULT_FORMAT = "penstock.delta"

_NOT_FOR_LETTERS = ("checkpointlocation", "delivery", "badrows", "deadletter", "deadlettermax", "store")
"""Options that the dead-letter destination cannot have: it uses the query's store and is coupled."""


def _limit(text: str) -> DeadLetterMax:
    match = re.fullmatch(r"([0-9]{1,9})|([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", text.strip())
    if match is None or float(match[2] or 0) > 100:
        raise ValueError("must be a number of rows such as 100, or a ratio such as 1%")
    if match[1] is not None:
        return DeadLetterMax(rows=int(match[1]))
    return DeadLetterMax(ratio=float(match[2]) / 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions:
    """Options for rows that the destination refuses."""

    bad_rows: BadRows = option(  # noqa: RUF009  it returns a field
        "badRows",
        one_of({choice.value: choice for choice in BadRows}),
        "Rows that do not fit the destination, or that it refuses for good: `fail` ends the query or, when a "
        "delivery sends them, parks the stream. `deadLetter`, for streams only, keeps them in the table of "
        "the option `deadLetter`. `drop` drops them, and logs how many.",
        default="fail",
    )
    dead_letter: str | None = optional(
        "deadLetter",
        text,
        "With `badRows=deadLetter`: location of the Delta table for these rows. Another destination is given "
        "with `deadLetter.format`, such as `penstock.iceberg`, and its own options, such as "
        "`deadLetter.table`.",
    )
    dead_letter_max: DeadLetterMax | None = optional(  # noqa: RUF009  likewise
        "deadLetterMax",
        _limit,
        "How many rows of a batch may become dead letters: a number, or a ratio such as `1%`. A batch with "
        "more fails the query or, when a delivery sends it, parks the stream.",
        default="no limit",
    )
    dead_letter_options: Mapping[str, str] = passed_on(
        "deadLetter.",
        str.lower,
        "Options of the dead-letter destination, such as `deadLetter.storage.AWS_REGION`.",
    )

    @property
    def has_dead_letters(self) -> bool:
        """True if a dead-letter destination is configured."""
        return self.dead_letter is not None or bool(self.dead_letter_options)


def letter_options(options: DeadLetterOptions) -> tuple[str, dict[str, str]]:
    """Return the data source of the dead-letter destination, and its options."""
    given = dict(options.dead_letter_options)
    data_source = given.pop("format", DEFAULT_FORMAT)
    return data_source, given if options.dead_letter is None else {**given, "path": options.dead_letter}


def problems_of_dead_letters(values: Mapping[str, Any]) -> list[str]:
    """Return problems of values that are valid one by one."""
    problems = []
    options: Mapping[str, str] = values.get("dead_letter_options", {})
    if values.get("bad_rows") is BadRows.DEAD_LETTER and not options and "dead_letter" not in values:
        problems.append(
            "badRows=deadLetter needs deadLetter: say where the rows are kept, for example "
            '.option("deadLetter", "/tables/refused_rows").'
        )
    problems += [
        f"deadLetter.{name} is not an option: dead letters are committed at once, in the query's own store."
        for name in options
        if name in _NOT_FOR_LETTERS
    ]
    if "path" in options and "dead_letter" in values:
        problems.append("deadLetter and deadLetter.path are the same. Remove one of them.")
    return problems
