"""The query of a destination with `routeBy`: as many tables as its rows name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...committers.errors import shown
from ...writers.row_log.route_names import RouteColumns, problem_of
from ..options.parsing import check, columns
from ..options.row_log import missing_row_log, row_log_of
from ..query import Query
from ..sink import Sink
from .opening import MakesSink, Routes
from .sink import RoutesSink
from .templates import Templates


def routed_query(name: str, source: Callable[[dict[str, str]], MakesSink], given: Mapping[str, str]) -> Query:
    """Make the query from the options that Spark passes.

    Args:
        name: of the data source, for messages
        source: the data source

    Raises:
        ConfigurationError: lists what is wrong with the options.
    """
    lower = {key.lower(): value for key, value in given.items()}
    templates = Templates(_columns(name, lower["routeby"]), lower)
    sample = source({**templates.filled(templates.sample), "delivery": "decoupled"}).sink()
    check(name, _problems(templates, sample))
    location = row_log_of(sample.options.row_log, sample.options.checkpoint_location)
    if location is None:
        raise missing_row_log("routeBy")
    texts = {key: templates.of_sample(text) for key, text in sample.options.given.items()}
    options = replace(sample.options, given={**texts, "rowLog": location}, route_by=None)
    routes_sink = RoutesSink(
        templates.of_sample(sample.table_uri),
        options,
        location,
        RouteColumns(templates.columns, sample.options.route_default),
        sample,
    )
    return Query(
        # the driver commits the batches of `RoutesSink`, those of the tables are for a delivery process
        replace(options, is_decoupled=False),
        routes_sink.table_uri,
        {"": routes_sink},
        sample.open_filesystem,
        routes=Routes(source, templates, routes_sink),
    )


def _columns(name: str, text: str) -> tuple[str, ...]:
    try:
        return columns(text)
    except ValueError as error:
        check(name, [f"routeBy={shown(text)}: {error}."])
        raise


def _problems(templates: Templates, sample: Sink[Any, Any]) -> list[str]:
    problems = []
    if templates.given.get("delivery", "").strip().lower() == "coupled":
        problems.append(
            "delivery=coupled: a query with routeBy is always decoupled, so that a table that cannot be "
            "written does not hold up the others. Remove the option, and run `penstock deliver`."
        )
    default = sample.options.route_default
    if default is not None and (problem := problem_of(default)):
        problems.append(f"routeDefault: it {problem}.")
    if len(set(templates.columns)) < len(templates.columns):
        problems.append("routeBy: it names a column twice.")
    return [*problems, *(_unnamed(name) for name in templates.unnamed(sample.table_uri))]


def _unnamed(column: str) -> str:
    return (
        f"routeBy names {column}, but the address of the table does not contain {{{column}}}: rows with "
        "different values would go to the same place. Give the option that names the table as a template, "
        "such as "
        f'.option("path", "/lake/{{{column}}}").'
    )
