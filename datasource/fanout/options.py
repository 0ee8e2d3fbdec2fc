"""Options of `penstock.fanout`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...committers.errors import shown
from ..options.declaring import optional, options_of, passed_on, prefixes_of
from ..options.delivery import MANY_BATCHES, DeliveryOptions, backlog_batches, backlog_seconds
from ..options.parsing import text
from ..options.stream import parse_as

NAME = "penstock.fanout"
PREFIX = "target."

_OF_THE_QUERY = ("checkpointLocation", "store", "queryName", "eventTime", "delivery")
"""Options that a target cannot have."""
_OF_ROUTES = ("routeBy", "routeDefault")
"""Options that neither the query nor a target can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutOptions(DeliveryOptions):
    """Options of `penstock.fanout`. Those of all sinks are the defaults of its targets."""

    row_log: str | None = optional(
        "rowLog",
        text,
        "The directory or URL of the row log, which all targets without files of their own share.",
        default="`row-log` in the checkpoint directory, if that is on a local disk",
    )
    has_row_log: ClassVar[bool] = True
    backlog_batches_max: int = backlog_batches(MANY_BATCHES)
    backlog_s_max: int = backlog_seconds(
        "172800",
        " For targets with files of their own, which others may delete if they are not committed. Targets "
        "with a row log have [their default](#all-that-send-requests).",
    )
    target_options: Mapping[str, str] = passed_on(
        PREFIX,
        str.lower,
        "The targets: `target.NAME` is the format of a target, such as `penstock.delta`, and "
        "`target.NAME.OPTION` an option of that format, such as `target.lake.path`.",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "For a row log or a checkpoint in an object store, such as `storage.AWS_REGION`.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FanoutOptions:
        """Parse the options that Spark passes, without those of the targets; see `parse_as`."""
        no_path = (
            'path is not an option: each target has its own, such as .option("target.lake.path", ...). Call '
            ".start() without a path."
        )
        no_routes = (
            "routeBy: a fan-out writes each row to all targets. Route the rows in queries of their own, "
            "one for each destination."
        )
        refused = {"path": no_path, "routeBy": no_routes}
        parsed = parse_as(cls, NAME, options, refused=refused, problems_of_values=_problems)
        return replace(parsed, is_decoupled=True)

    def options_of_target(self, name: str, given: Mapping[str, str], *, has_row_log: bool) -> dict[str, str]:
        """Return the options of a target: its own, and the defaults.

        Args:
            given: the options that Spark has passed to the fan-out
            has_row_log: see `DestinationType`
        """
        shared = {key.lower() for key in (*_SHARED, *(["rowlog"] if has_row_log else []))}
        defaults: dict[str, str] = {} if has_row_log else self._backlog
        defaults |= {key.lower(): value for key, value in given.items() if key.lower() in shared}
        if has_row_log:
            defaults |= {f"storage.{key.lower()}": value for key, value in self.storage_options.items()}
        defaults |= {f"deadletter.{key}": value for key, value in self.dead_letter_options.items()}
        own = self.own_options(name)
        named = {"queryname": f"{self.query_name}.{name}"} if self.query_name else {}
        return {**defaults, **own, **named, "delivery": "decoupled"}

    @property
    def _backlog(self) -> dict[str, str]:
        """A target that is down must not hold up the others. So it has larger limits than a stream alone."""
        return {
            "backlogbatches": str(self.backlog_batches_max),
            "backlogseconds": str(self.backlog_s_max),
        }

    def own_options(self, name: str) -> dict[str, str]:
        prefix = f"{name}."
        return {
            key[len(prefix) :]: value for key, value in self.target_options.items() if key.startswith(prefix)
        }

    @property
    def formats(self) -> dict[str, str]:
        """The formats of the targets, by their names in alphabetical order."""
        return _formats(self.target_options)


def _formats(given: Mapping[str, str]) -> dict[str, str]:
    return {key: given[key].strip() for key in sorted(given) if "." not in key}


def _problems(values: Mapping[str, Any]) -> list[str]:
    problems = _problems_of_targets(values.get("target_options", {}))
    if values.get("is_decoupled") is False:
        problems.append(
            "delivery=coupled: a fan-out is always decoupled, so that its targets do not wait for each "
            "other. Remove the option."
        )
    return problems


def _problems_of_targets(given: Mapping[str, str]) -> list[str]:
    formats = _formats(given)
    if not formats:
        return [
            'There is no target: name each one with its format, such as .option("target.lake", '
            '"penstock.delta"), and give its options, such as .option("target.lake.path", ...).'
        ]
    problems = [
        f"{PREFIX}{name}: the name of a target must be of letters, digits, - and _, at most 50."
        for name in formats
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,49}", name)
    ]
    problems += [
        f"{PREFIX}{name}.*: there is no target {shown(name)}, only {', '.join(formats)}. Name its format: "
        f'.option("{PREFIX}{name}", "penstock.delta").'
        for name in sorted({key.partition(".")[0] for key in given} - formats.keys())
    ]
    of_query = {name.lower(): name for name in _OF_THE_QUERY}
    problems += [
        f"{PREFIX}{name}.{of_query[option]}: all targets have the {of_query[option]} of the query. Remove it"
        + ("." if option == "delivery" else ", or give it without the name of a target.")
        for name, _, option in (key.partition(".") for key in given)
        if option in of_query
    ]
    problems += [
        f"{PREFIX}{key}: a target of a fan-out gets all rows. Route the rows in a query of their own."
        for key in given
        if key.partition(".")[2] in {option.lower() for option in _OF_ROUTES}
    ]
    return problems


OPTIONS = options_of(FanoutOptions)
PREFIXES = prefixes_of(FanoutOptions)

_SHARED = frozenset(option.name.lower() for option in options_of(DeliveryOptions)) - {
    *("queryname", "delivery", "rowlog"),
    *(option.lower() for option in _OF_ROUTES),
}
