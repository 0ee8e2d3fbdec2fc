"""`penstock.check`: what can be found out about a query before it starts. Creates nothing, and moves no data.

The rules are those of the start itself: the parser of the options, the plan of a batch in a dry run, and the
checks of checkpoint, store and table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...committers.contract import StreamKey
from ...committers.errors import ConfigurationError
from ...datasource.dead_letters import check_letter_sink, letter_sink_of
from ...datasource.destinations import destination_type
from ...datasource.planning.start_check import NextBatch
from ...datasource.query import Query
from ...datasource.spark.registration import data_source_of, is_known
from ..findings import Finding
from ..records import Records
from .described import UNSUPPORTED_TRIGGERS, DescribedQuery, described
from .places import CheckedStore, check_checkpoint, check_store
from .report import Part, Report, run_parts
from .targets import TargetCheck, check_letters
from .versions import check_versions, extra_of

WAIT_S = 30.0
"""How long a check waits for all that it asks, by default."""


def check(
    query: Any,
    options: Mapping[str, object] | None = None,
    /,
    *,
    schema: Any = None,
    output_mode: str | None = None,
    wait_s: float = WAIT_S,
    **more_options: object,
) -> Records[Finding]:
    """Check a streaming query before it starts, as `penstock check` does.

        writer = events.writeStream.format("penstock.delta").option("path", "/lake/events")
        penstock.check(writer, checkpointLocation="/checkpoints/events")
        penstock.check("penstock.delta", schema=events.schema, path="/lake/events")

    It parses the options; compares versions; writes a small object into the places of files, and deletes it;
    compares clocks; and makes the checks of the query's next start: those of the rows against the table, and
    of the checkpoint against store and table. It creates no table and no store, and sends no rows. Runs where
    it is called, which should be the driver: tasks on other machines may have other permissions. Not found
    out: whether a catalog lets this user create or commit to a table, and what only rows show.

    Args:
        query: a `DataStreamWriter` before its start, or the name of a format, such as `penstock.delta`
        options: of the data source, by name; in addition to those of a writer
        schema: of the rows, if the query is a format: a `StructType`, a DataFrame, a schema of Arrow, or
            columns as in SQL. Without it, rows are not compared with the table
        output_mode: if the query is a format: `append`, `complete` or `update`
        wait_s: seconds in which checkpoint and store have to answer, and then the targets
        more_options: other options

    Returns:
        a finding for each thing that was looked at. Problems of the query are findings, and no exceptions

    Raises:
        ConfigurationError: the query is neither a writer nor a format, or the schema is none.
    """
    wanted = described(query, {**(options or {}), **more_options}, schema, output_mode)
    return Records(Finding, check_query(wanted, wait_s))


def check_query(wanted: DescribedQuery, wait_s: float = WAIT_S) -> list[Finding]:
    """See `check`."""
    report = Report.of(wanted.options)
    made = _made(wanted, report)
    with report.step("versions"):
        check_versions(report, () if made is None else _extras(made))
    if made is None:
        for subject in ("store", "checkpoint", "table"):
            report.skip(subject, "It needs options without errors.")
        return report.findings()
    with report.step("query"):
        _check_writer(wanted)
    following, store = _shared(wanted, made, report, wait_s)
    run_parts(list(_parts(wanted, made, following, store)), report, wait_s)
    store.close()
    return report.findings()


def _made(wanted: DescribedQuery, report: Report) -> Query | None:
    """Return the query with its targets; None if the options are wrong, which is reported."""
    try:
        given = {name.lower(): text for name, text in wanted.options.items()}  # as Spark passes them
        query = data_source_of(wanted.format)(given).query()
        for sink in query.targets.values():
            check_letter_sink(sink, query.siblings)
    except Exception as error:  # noqa: BLE001  of a plug-in or of a library that is missing
        report.fail("options", error)
        return None
    report.ok("options", f"{wanted.format} writes {query.address}.")
    return query


def _check_writer(wanted: DescribedQuery) -> None:
    if wanted.spark is not None and not is_known(wanted.spark, wanted.format):
        raise ConfigurationError(
            f"The session has no data source {wanted.format}. Call penstock.register(spark) before the start."
        )
    if wanted.output_mode == "update":
        raise ConfigurationError(
            "The output mode update is only for penstock.foreach_batch. Use append, or complete to replace "
            "all rows."
        )
    if wanted.trigger in UNSUPPORTED_TRIGGERS:
        raise ConfigurationError(
            f"The trigger {wanted.trigger} does not call Python sinks. Use trigger(processingTime=...) or "
            "trigger(availableNow=True)."
        )


def _shared(
    wanted: DescribedQuery, query: Query, report: Report, wait_s: float
) -> tuple[NextBatch | None, CheckedStore]:
    """Check what all targets of the query share."""
    following: list[NextBatch | None] = []
    store: list[CheckedStore] = []
    location = f"The checkpoint {query.options.checkpoint_location}"

    def check_own_checkpoint(own: Report) -> None:
        following.append(check_checkpoint(own, query, is_writer=wanted.spark is not None))

    shared = [
        Part("checkpoint", "", location, check_own_checkpoint),
        Part("store", "", "The manifest store", lambda own: store.append(check_store(own, query))),
    ]
    run_parts(shared, report, wait_s)
    return (following or [None])[0], (store or [CheckedStore()])[0]


def _parts(
    wanted: DescribedQuery, query: Query, following: NextBatch | None, store: CheckedStore
) -> Iterator[Part]:
    for name, sink in query.targets.items():
        yield Part(
            "table", name, sink.table_uri, TargetCheck(name, sink, query, wanted, following, store.opened).run
        )
        letters = letter_sink_of(sink)
        if letters is not None:
            label = f"dead letters of {name}" if name else "dead letters"
            yield Part("table", label, letters.table_uri, partial(check_letters, letters))


def _extras(query: Query) -> Iterator[str]:
    """Yield the extras of Penstock that the destinations of the query need."""
    sinks: list[Any] = [getattr(sink, "sample", sink) for sink in query.targets.values()]
    letters = [letter_sink_of(sink) for sink in sinks]
    for sink in (*sinks, *(one for one in letters if one is not None)):
        yield destination_type(StreamKey("", sink.table_uri), sink.kind).extra or extra_of(sink.kind)
