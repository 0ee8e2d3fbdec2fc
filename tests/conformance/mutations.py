"""For each claim of the conformance suite, a change of the product that must make it fail.

A claim that passes nevertheless checks nothing. One method or value is patched; the rest is real. Where
possible, the destination is the example of a plug-in; import this module after it is installed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from penstock_jsonlines import DESTINATION, JsonLines, PartWriter
from tests.conformance.harnesses import (
    DeduplicatingHttpHarness,
    DeltaHarness,
    HttpHarness,
    HudiHarness,
    PostgresHarness,
)
from tests.plug_in.harness import JsonLinesHarness
from tests.support.files import FilesHarness

from penstock.committers.changes import completed_rows, ties, versions
from penstock.committers.changes.keys import row_numbers
from penstock.committers.changes.masked_rows import KeySearch
from penstock.committers.changes.tombstones import Tombstones
from penstock.committers.cleaning import cleanup
from penstock.committers.contract import Changes, Committed, DataFile, Manifest, Token
from penstock.committers.delta import changes as delta_changes
from penstock.committers.delta import committer as delta_committer
from penstock.committers.delta import plan as delta_plan
from penstock.committers.delta import schema_match
from penstock.committers.delta.commit_writer import CommitWriter
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import ManifestCorruptError, RetryableError, SchemaMismatchError
from penstock.committers.file_tables.evolution import NO_EVOLUTION
from penstock.committers.file_tables.file_manifests import FileManifests
from penstock.committers.file_tables.reserved_names import ReservedNames
from penstock.committers.postgres.connection import PostgresServer
from penstock.committers.protocol import decision, token_check
from penstock.committers.protocol.decision import Action, RecordStatus
from penstock.committers.protocol.preparing import Preparation, PreparedBatches
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.store import contents
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.texts.secrets import Secrets
from penstock.datasource import committing
from penstock.datasource.changes import planning as changes_planning
from penstock.datasource.delta import sink as delta_sink
from penstock.datasource.delta.sink import DeltaSink, DeltaTarget
from penstock.datasource.files import existing_files
from penstock.datasource.options import stream as stream_options
from penstock.datasource.planning import plan as planning
from penstock.datasource.routing.logged_table import LoggedTable
from penstock.datasource.routing.opening import Routes
from penstock.operating.checking.report import Report
from penstock.readers.delta.scan import DeltaTableReader
from penstock.readers.streaming.plan import StreamPlan
from penstock.testing.conformance import query
from penstock.testing.conformance.data import NESTED
from penstock.testing.conformance.harness import DestinationHarness
from penstock.writers.changes import change_files
from penstock.writers.changes.change_files import ChangeFileWriter
from penstock.writers.changes.envelopes.decoder import RowDecoder
from penstock.writers.changes.row_kinds import RowKinds
from penstock.writers.parquet import partition_check, schema_projection
from penstock.writers.requests import http, settlement
from penstock.writers.requests.results import DELIVERED

Patch = Callable[[], AbstractContextManager[Any]]
BAD_FILE = DataFile("", 0, 0)
NewHarness = Callable[..., DestinationHarness]
"""Of a folder, and for HTTP of a service and a proxy before it."""


class Mutation:
    """A change of the product, and the claims that must fail with it.

    Args:
        claims: those without parameters
        given: the parameters of others, by claim
    """

    def __init__(
        self,
        patch: Patch,
        *claims: str,
        harness: NewHarness = JsonLinesHarness,
        **given: dict[str, Any],
    ) -> None:
        self.patch, self.harness = patch, harness
        self.claims: dict[str, dict[str, Any]] = {**{claim: {} for claim in claims}, **given}


DeltaMutation = partial(Mutation, harness=DeltaHarness)


def method(owner: Any, name: str, new: Callable[..., Any]) -> Patch:
    """`new` is called with the real method first."""
    real = getattr(owner, name)
    return lambda: mock.patch.object(owner, name, lambda *args, **kwargs: new(real, *args, **kwargs))


def returning(owner: Any, name: str, value: Any) -> Patch:
    return lambda: mock.patch.object(owner, name, return_value=value)


def _upserts_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pc.invert(rows.column("_change_deleted")))


def _both(one: Patch, other: Patch) -> Patch:
    @contextmanager
    def enter() -> Iterator[None]:
        with one(), other():
            yield

    return enter


# What destinations do wrong ---------------------------------------------------------------------------


def _as_written(real: Any, *args: Any) -> Any:
    lines, _ = real(*args)
    return lines, {number: end for line in lines for number, end in line.added.items()}


def _keep_batches(write: Any, writer: PartWriter, batch: pa.RecordBatch) -> None:
    writer.__dict__.setdefault("kept", []).append(batch)
    write(writer, batch)


def _finish_visibly(finish: Any, writer: PartWriter) -> Any:
    files = finish(writer)
    if files:
        visible = writer._path.parents[1] / "visible.jsonl"
        visible.write_bytes(writer._path.read_bytes())
    return files


def _name_all_parts(manifest: Any, target: JsonLines, batch: Any, content: str, payloads: Any) -> Manifest:
    there = [DataFile(path.name, path.stat().st_size, 1) for path in target.folder.glob(".parts/[!.]*")]
    return manifest(target, batch, content, [there])


def _token(choose: Callable[..., Any], target: JsonLines, query_id: str) -> Any:
    names = [path.name.split(".") for path in target.folder.glob(f"{query_id}.*.*.jsonl")]
    chosen = choose(((int(batch_id), digest) for _, batch_id, digest, _ in names), default=None)
    return chosen and Token(*chosen)


def _keep_ten_batches(commit: Any, target: JsonLines, *args: Any) -> Any:
    outcome = commit(target, *args)
    for path in sorted(target.folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)[:-10]:
        path.unlink()
    return outcome


def _prepare_the_first(prepare_all: Any, store: SqlManifestStore, requests: Any, run_id: str) -> Any:
    """Only the first manifest is stored, and the result is as if all were."""
    first = prepare_all(store, requests[:1], run_id)
    return [first[0], *(replace(first[0], record=replace(first[0].record, batch=one.manifest.batch))
                        for one in requests[1:])]  # fmt: skip


def _write_and_delete(write: Any, table: LoggedTable, manifest: Manifest, batches: Any) -> Any:
    written = write(table, manifest, batches)
    table.discard([tuple(replace(BAD_FILE, path=file.path) for one in batches for file in one.files)])
    return written


def _commit_without_rows(commit: Any, target: JsonLines, manifest: Manifest, *args: Any) -> Any:
    for file in FileManifests("jsonlines").decode(manifest):
        (target.folder / ".parts" / file.path).touch()
    return commit(target, manifest, *args)


def _commit_in_two_steps(_commit: Any, target: JsonLines, manifest: Manifest, *_: Any) -> Committed:
    """First the rows, then the token, without reading the token before."""
    batch, files = manifest.batch, FileManifests("jsonlines").decode(manifest)
    rows = "".join((target.folder / ".parts" / file.path).read_text() for file in files)
    (target.folder / f"rows-{uuid.uuid4()}.jsonl").write_text(rows)
    (target.folder / f"{batch.stream.query_id}.{batch.batch_id}.{batch.digest}.jsonl").touch()
    return Committed(1)


def _delete_others(commit: Any, target: JsonLines, *args: Any) -> Any:
    for path in target.folder.glob("others-*.jsonl"):
        path.unlink()
    return commit(target, *args)


def _skip_bad_rows(write: Any, writer: PartWriter, batch: pa.RecordBatch) -> None:
    try:
        write(writer, batch)
    except SchemaMismatchError:
        return


def _count_all(discard: Any, target: JsonLines, payloads: Any) -> int:
    files = [file for payload in payloads for file in payload]
    discard(target, [files])
    return len(files)


def _decode_leniently(decode: Any, manifests: FileManifests, manifest: Manifest) -> Any:
    try:
        return decode(manifests, manifest)
    except ManifestCorruptError:
        return ()


def _commit_with_stale_cache(commit: Any, table: DeltaTableCommitter, *args: Any) -> Any:
    cached = table._cached_table
    outcome = commit(table, *args)
    table._cached_table = cached
    return outcome


def _only_the_last(_is_committed: Any, _table: Any, _view: Any, token: Any, manifest: Manifest) -> bool:
    return bool(token.batch_id == manifest.batch.batch_id)


def _append_anyway(plan: Any, target: DeltaTarget, rows: Any, _mode: str, batch_id: int) -> Any:
    return plan(target, rows, "append", batch_id)


def _add_no_columns(plan: Any, table: DeltaTableCommitter, rows: Any, **options: Any) -> Any:
    return plan(table, rows, **{**options, "evolution": NO_EVOLUTION})


def _decide(known: RecordStatus, action: Action) -> Patch:
    return lambda: mock.patch.dict(decision.COUPLED, {known: (action,) * 5})


def _declare(harness: type[DestinationHarness], **promises: Any) -> Patch:
    return lambda: mock.patch.object(harness, "promises", replace(harness.promises, **promises))


def _commit_at_once(manifest: Any, target: DeltaTarget, *args: Any) -> Manifest:
    built: Manifest = manifest(target, *args)
    target.commit(built)
    return built


MUTATIONS = {
    "a manifest without its last payload": Mutation(
        method(JsonLines, "manifest", lambda real, *args: real(*args[:-1], args[-1][:-1])),
        "the_rows_of_all_tasks_are_committed_once",
        "prepared_batches_are_delivered_once",
    ),
    "a task without rows that hands back a file": Mutation(
        method(PartWriter, "finish", lambda real, it: real(it) or (DataFile(it._path.name, 0, 0),)),
        "an_empty_batch_is_committed_and_adds_nothing",
    ),
    "parts that readers see": Mutation(
        method(PartWriter, "finish", _finish_visibly),
        "rows_are_invisible_until_their_batch_is_committed",
    ),
    "committed batches that are written again": Mutation(
        _decide(RecordStatus.COMMITTED, Action.WRITE),
        "a_replay_is_skipped",
    ),
    "a reader that leaves out a file": DeltaMutation(
        method(DeltaTableReader, "files", lambda real, *args: islice(real(*args), 1)),
        "a_reader_sees_no_row_twice_after_a_delivery_in_between",
        a_reader_sees_a_batch_whole_or_not_at_all={"point": "mark.done"},
    ),
    "a stream that leaves out a file": DeltaMutation(
        method(StreamPlan, "files", lambda real, *args: islice(real(*args), 1)),
        "a_stream_of_the_table_has_each_row_once",
    ),
    "a table that has no token": DeltaMutation(
        returning(delta_committer, "token_of", None),
        "a_replay_after_the_store_was_lost_adds_nothing",
        "a_batch_whose_response_and_store_were_lost_is_not_added_again",
        "a_delivered_batch_is_not_written_again_if_the_store_was_lost",
    ),
    "a commit that does not read the token": DeltaMutation(
        returning(DeltaTableCommitter, "_is_committed", False),
        "a_commit_that_is_repeated_adds_nothing",
        "a_concurrent_driver_that_commits_first_is_noticed_by_the_commit",
        a_committed_batch_whose_response_was_lost_is_not_added_again={"batch_id": 0},
        a_crash_of_a_batch_with_a_new_column_loses_and_doubles_nothing={"point": "commit.landed"},
        two_drivers_that_commit_one_batch_at_once_add_it_once={"batch_id": 1},
    ),
    "only the batch of the token counts as committed": DeltaMutation(
        method(DeltaTableCommitter, "_is_committed", _only_the_last),
        "a_batch_before_the_token_adds_nothing",
    ),
    "the token of the first batch": Mutation(
        method(JsonLines, "token", lambda _, *args: _token(min, *args)),
        "the_token_is_the_last_batch_of_the_query",
    ),
    "a commit that does not call check_token": Mutation(
        method(JsonLines, "commit", lambda real, target, manifest, *_: real(target, manifest)),
        "the_token_is_checked_once_a_batch_is_to_be_added",
    ),
    "the cached table is not refreshed by the commit": DeltaMutation(
        method(DeltaTableCommitter, "commit", _commit_with_stale_cache),
        "a_target_sees_its_own_commit",
    ),
    "one token for all queries": Mutation(
        method(JsonLines, "token", lambda _, target, __: _token(max, target, "*")),
        "two_queries_have_a_token_each",
        "two_queries_commit_concurrently",
    ),
    "another address in the store": Mutation(
        lambda: mock.patch.object(
            JsonLinesHarness,
            "destination",
            replace(DESTINATION, stored_table=lambda stream, _: JsonLines(Path(f"{stream.table_uri}-other"))),
        ),
        "commands_find_the_destination_by_its_address",
    ),
    "a manifest that references every part in the directory": Mutation(
        method(JsonLines, "manifest", _name_all_parts),
        a_crash_before_the_manifest_loses_and_doubles_nothing={"step": "all tasks finished"},
        a_crash_at_a_crash_point_loses_and_doubles_nothing={"point": "prepare.start"},
    ),
    "a commit in two steps that does not read the token": Mutation(
        method(JsonLines, "commit", _commit_in_two_steps),
        "a_crash_in_every_start_loses_and_doubles_nothing",
        "a_driver_that_resumes_late_adds_nothing",
        "a_delivery_process_that_resumes_late_adds_nothing",
        a_crash_around_the_commit_loses_and_doubles_nothing={"has_committed": True, "batch_id": 0},
        a_crash_in_recovery_loses_and_doubles_nothing={"point": "commit.landed"},
        a_crash_around_the_commit_of_a_delivery_loses_and_doubles_nothing={"has_committed": True},
    ),
    "a recovery that does nothing": Mutation(
        returning(Recovery, "recover", []),
        "recovery_without_a_replay_commits_pending_batches",
    ),
    "files that a replay wrote in vain stay": Mutation(
        returning(Preparation, "_discard_unlisted", None),
        "a_replay_with_other_partitions_adds_nothing",
    ),
    "an abort that deletes files that a manifest may reference": Mutation(
        lambda: mock.patch.object(query, "abort_batch", committing.discard),
        "a_batch_whose_request_was_lost_is_committed_by_the_next_start",
        "an_abort_after_an_unknown_end_deletes_nothing",
    ),
    "an abort that deletes nothing": Mutation(
        returning(query, "abort_batch", None),
        "an_abort_of_a_batch_with_a_failed_task_leaves_nothing",
        "a_batch_write_that_fails_leaves_nothing",
    ),
    "a writer that leaves its part": Mutation(
        returning(PartWriter, "abort", None),
        "a_task_that_fails_leaves_nothing",
    ),
    "missing parts count as deleted": Mutation(
        method(JsonLines, "discard", _count_all),
        "discarding_is_idempotent_and_touches_no_other_batch",
    ),
    "a destination that reports no part as missing": Mutation(
        returning(JsonLines, "missing", []),
        "a_deleted_payload_is_reported_as_missing",
        "a_missing_payload_is_written_again_by_the_replay",
        "a_missing_payload_that_no_replay_writes_again_is_an_error",
    ),
    "files of a fenced run stay": Mutation(
        returning(PreparedBatches, "discard", 0),
        "a_run_that_was_taken_over_commits_nothing",
    ),
    "rows from other offsets that are dropped silently": Mutation(
        _decide(RecordStatus.COMMITTED_OTHER, Action.SKIP),
        "other_offsets_under_a_committed_batch_id_are_refused",
    ),
    "a commit that does not compare digests": Mutation(
        returning(token_check, "is_committed", True),
        "other_offsets_are_refused_in_the_commit",
    ),
    "a pending batch that is not given up": Mutation(
        _decide(RecordStatus.PREPARED_OTHER, Action.WRITE),
        "a_pending_batch_with_other_offsets_is_replaced",
    ),
    "a commit that deletes the files of others": Mutation(
        method(JsonLines, "commit", _delete_others),
        rows_of_other_writers_stay={"when": "in the commit"},
    ),
    "a plan that does not check the identity of the table": DeltaMutation(
        returning(planning, "check_same_table", None),
        a_destination_that_has_changed_is_not_written={"change": "dropped"},
    ),
    "a commit that does not check the identity of the table": DeltaMutation(
        _both(
            returning(delta_committer, "check_same_table", None),
            returning(DeltaTableCommitter, "_check_log_since", []),
        ),
        a_destination_that_changes_before_the_commit_is_not_committed_to={
            "change": "dropped and created again"
        },
    ),
    "a store that does not accept": DeltaMutation(
        returning(SqlManifestStore, "accept_table", None),
        "a_table_that_an_operator_accepts_is_written_again",
    ),
    "a plan that does not check for earlier queries": DeltaMutation(
        returning(planning, "check_new_query", None),
        "a_new_query_over_the_rows_of_an_earlier_one_is_noticed",
    ),
    "a plan that does not ask where the query has written before": DeltaMutation(
        returning(planning, "check_new_target", None),
        "a_query_that_wrote_elsewhere_before_is_refused",
    ),
    "overwrites that append": DeltaMutation(
        method(DeltaTarget, "plan_batch", _append_anyway),
        "overwriting_replaces_all_rows_once",
        "a_batch_write_that_overwrites_replaces_all_rows",
        "a_backlog_with_a_batch_that_overwrites_keeps_its_order",
    ),
    "an overwrite on a newer version than the one whose token was checked": DeltaMutation(
        method(
            CommitWriter,
            "write",
            lambda real, it, _, manifest, content: real(
                it, it._snapshot_cache.load(it._uri, it._options), manifest, content
            ),
        ),
        "a_batch_that_overwrites_late_removes_nothing_of_the_next_batch",
    ),
    "schemaEvolution is ignored": DeltaMutation(
        method(DeltaTableCommitter, "plan", _add_no_columns),
        "a_new_column_is_added_with_its_batch",
    ),
    "types are not widened": DeltaMutation(
        returning(schema_match, "_is_widened", value=False),
        columns_are_widened_with_their_batch={"point": "commit.start"},
    ),
    "values in columns that the table does not have are left out": DeltaMutation(
        returning(schema_projection, "check_absent", value=None),
        "rows_of_another_shape_are_quarantined",
    ),
    "doubles fit into floats": DeltaMutation(
        _both(
            returning(schema_match, "_never", value=True),
            returning(schema_projection, "_is_exact", value=True),
        ),
        a_double_never_becomes_infinite_in_a_float_column={"bad_rows": "fail"},
    ),
    "a plan that does not check the types": DeltaMutation(
        method(DeltaTarget, "plan_batch", lambda real, it, _, *args: real(it, query.IDS, *args)),
        "rows_of_another_type_are_refused_before_any_is_written",
    ),
    "no name is reserved": DeltaMutation(
        returning(ReservedNames, "__contains__", value=False),
        "a_name_that_readers_reserve_is_refused_for_a_new_column",
    ),
    "a folder whose files seem to have other maps than the rows": Mutation(
        lambda: mock.patch.object(existing_files, "_plain", lambda data_type: data_type),
        columns_are_refused_at_first_or_written_in_each_batch={"types": NESTED},
        harness=FilesHarness,
    ),
    "bad rows are left out": Mutation(
        method(PartWriter, "write", _skip_bad_rows),
        "a_bad_value_is_refused_before_anything_is_visible",
    ),
    "numbers that overflow are cut off": Mutation(
        method(schema_projection, "_cast", lambda _, array, target, __: array.cast(target, safe=False)),
        a_number_that_overflows_its_column_is_a_bad_row={"bad_rows": "drop"},
        harness=DeltaHarness,
    ),
    "partition values that lead out of the table once decoded": Mutation(
        returning(partition_check, "is_relative", True),
        a_value_that_the_tasks_let_pass_is_committed={"column": "text"},
        harness=HudiHarness,
    ),
    "a writer that keeps its rows": Mutation(
        method(PartWriter, "write", _keep_batches),
        "the_memory_of_a_task_does_not_grow_with_its_rows",
    ),
    "a query whose rows all go to one table": DeltaMutation(
        method(Routes, "sink_of", lambda real, it, route: real(it, (route[0].removesuffix("2"),))),
        "rows_go_to_the_destination_that_they_name",
    ),
    "manifests of tables that are not stored together": DeltaMutation(
        method(SqlManifestStore, "prepare_all", _prepare_the_first),
        a_crash_of_the_driver_loses_and_doubles_no_routed_row={"point": "prepare.done"},
    ),
    "a row log that is deleted before the commit": DeltaMutation(
        method(LoggedTable, "_write", _write_and_delete),
        a_crash_of_a_delivery_loses_and_doubles_no_routed_row={"point": "commit.start"},
        a_delivery_of_routed_rows_whose_commit_was_lost_is_finished_by_the_next={"lost": "request"},
    ),
    "parts stay behind": Mutation(
        returning(JsonLines, "discard", 0),
        "a_batch_write_appends_once",
        "a_delivery_leaves_nothing_behind",
    ),
    "a directory that keeps ten batches": Mutation(
        method(JsonLines, "commit", _keep_ten_batches),
        "batches_of_a_long_stream_are_committed_in_order",
    ),
    "wrong counts": Mutation(
        method(FileManifests, "encode", lambda real, *args: replace(real(*args), rows=0)),
        "a_manifest_is_read_from_the_store_as_it_was_written",
    ),
    "random names": Mutation(
        method(FileManifests, "encode", lambda real, *args: replace(real(*args), content=uuid.uuid4().bytes)),
        "a_manifest_depends_only_on_the_plan_and_the_payloads",
    ),
    "neither the store nor the destination checks what it reads": Mutation(
        _both(returning(contents, "_is_whole", True), method(FileManifests, "decode", _decode_leniently)),
        "a_manifest_that_is_damaged_in_the_store_is_reported",
    ),
    "rows that wait are read from the first file only": DeltaMutation(
        method(
            delta_sink, "parquet_rows", lambda read, files, listed, schema: read(files, listed[:1], schema)
        ),
        "the_rows_of_a_batch_that_waits_can_be_read",
    ),
    "a damaged manifest is taken for an empty one": Mutation(
        method(FileManifests, "decode", _decode_leniently),
        a_manifest_that_cannot_be_decoded_is_reported={"damage": "cut off"},
    ),
    "an address that is never the same": DeltaMutation(
        lambda: mock.patch.object(DeltaSink, "table_uri", property(lambda _: f"/rows-{uuid.uuid4()}")),
        "one_destination_has_one_address",
    ),
    "all options are kept in the store": DeltaMutation(
        lambda: mock.patch.object(stream_options, "storable", lambda _known, options: dict(options)),
        "no_secret_is_in_the_store_in_logs_or_in_a_repr",
    ),
    "secrets are sent to tasks, against the promise": DeltaMutation(
        _declare(DeltaHarness, shows_secrets_to_tasks=False),
        "tasks_get_the_secrets_that_they_need_and_no_others",
    ),
    "an error that shows the settings": Mutation(
        method(PostgresServer, "failed", lambda _, server, *__: RetryableError(f"{dict(server.settings)}")),
        harness=lambda _: PostgresHarness(lambda: "postgresql+psycopg://u@h/d?options=-csearch_path%3Ds"),
        an_unreachable_server_is_reported_without_secrets={"delivery": "coupled"},
    ),
    "a request counts as delivered, whatever the answer is": Mutation(
        method(settlement, "result_of_each", lambda _real, _results, entries: [DELIVERED] * entries),
        "an_answer_that_acknowledges_nothing_delivers_nothing",
        harness=HttpHarness,
        a_task_whose_requests_or_responses_are_lost_repeats_only_these={"lost": "request"},
    ),
    "what a service says is shown as it is": Mutation(
        method(Secrets, "message", lambda _real, _secrets, text: text),
        harness=HttpHarness,
        an_answer_that_echoes_the_request_shows_no_secret={"delivery": "decoupled"},
    ),
    "a request that is repeated has another id": Mutation(
        method(http, "_idempotency_key", lambda *_: str(uuid.uuid4())),
        harness=DeduplicatingHttpHarness,
        a_delivery_whose_requests_or_responses_are_lost_repeats_only_these={"lost": "response"},
    ),
    "an error that shows all options": DeltaMutation(
        method(
            stream_options,
            "parse_options",
            lambda real, known, prefixes, options: ({}, [*real(known, prefixes, options)[1], str(options)]),
        ),
        "an_unknown_option_is_refused_without_secrets",
    ),
    "a delivery process that ignores an unfinished delivery": Mutation(
        returning(SqlDeliveries, "unfinished", None),
        a_crash_of_a_delivery_process_loses_and_doubles_nothing={"point": "deliver.prepared"},
        a_delivery_whose_commit_was_lost_is_finished_by_the_next={"lost": "request"},
    ),
    "a commit that ignores missing parts": Mutation(
        _both(returning(JsonLines, "missing", []), method(JsonLines, "commit", _commit_without_rows)),
        "missing_prepared_rows_stop_the_delivery",
    ),
    "a clean-up that classifies every file as young": DeltaMutation(
        returning(cleanup, "classify", cleanup.FileStatus.YOUNG),
        "clean_up_deletes_the_files_of_lost_attempts",
        "a_retired_stream_leaves_nothing_but_its_rows",
    ),
    "a clean-up that classifies every file as unneeded": DeltaMutation(
        returning(cleanup, "classify", cleanup.FileStatus.UNNEEDED),
        "clean_up_keeps_files_that_are_pending_young_or_of_another_query",
    ),
    "changes that mask no row of the table": DeltaMutation(
        method(KeySearch, "masked_rows", lambda *args: replace(args[0](*args[1:]), in_table={})),
        "rows_insert_replace_and_delete_by_key",
        "keys_of_several_columns_are_compared_by_value",
        "a_key_that_moves_to_another_partition_leaves_the_old_one",
        "two_drivers_that_change_the_same_rows_at_once_change_them_once",
        "a_delivery_of_many_batches_makes_the_rows_of_one_after_the_other",
        "a_crash_of_a_delivery_loses_and_doubles_no_change",
        a_crash_loses_and_doubles_no_change={"point": "commit.landed"},
        changes_whose_commit_was_lost_are_applied_once={"lost": "request"},
    ),
    "changes whose losing rows stay": DeltaMutation(
        returning(KeySearch, "_losing_rows", {}),
        "a_replay_by_other_tasks_makes_the_same_rows",
        "random_changes_make_the_rows_of_a_dict",
        the_last_row_of_a_key_counts_whichever_task_has_written_it={"tasks": 2},
    ),
    "equal rows are different": DeltaMutation(
        returning(change_files, "are_equal", value=False), "equal_rows_of_a_key_are_one"
    ),
    "a batch may have two last rows of a key": DeltaMutation(
        returning(ties, "check_one_row", None),
        two_different_rows_of_a_key_without_an_order_are_refused={"tasks": 2, "second": (1, 2, "y")},
        two_versions_of_one_time_are_refused={"tasks": 2},
    ),
    "late rows are always ignored": DeltaMutation(
        method(planning, "mode_of", lambda real, *args: replace(real(*args), late_rows="ignore")),
        "batches_are_applied_in_their_order",
    ),
    "late rows are never found": DeltaMutation(
        method(KeySearch, "_late_keys", lambda *_: pa.nulls(0, pa.int64())),
        "with_late_rows_ignored_an_older_row_changes_nothing",
    ),
    "no tombstone is found": DeltaMutation(
        returning(Tombstones, "late_keys", pa.nulls(0, pa.int64())),
        "with_late_rows_ignored_an_older_row_brings_no_deleted_key_back",
    ),
    "messages that delete nothing": DeltaMutation(
        method(RowDecoder, "__call__", lambda real, *args: _upserts_of(real(*args))),
        messages_of_debezium_insert_replace_and_delete_by_key={"late_rows": "apply"},
    ),
    "keys may be NULL": DeltaMutation(
        returning(RowKinds, "check_rows", None), "a_row_without_a_key_is_a_bad_row"
    ),
    "keys may have any type": DeltaMutation(
        returning(changes_planning, "_check_types", None),
        options_that_fit_no_row_are_refused_before_any_row_moves={"options": {"keys": "ratio"}},
    ),
    "a query with changes replaces all rows": DeltaMutation(
        returning(planning, "mode_of", "overwrite"), "a_batch_that_replaces_all_rows_is_refused"
    ),
    "changes that are committed while they are prepared": DeltaMutation(
        method(DeltaTarget, "manifest", _commit_at_once),
        "changes_are_invisible_until_their_batch_is_committed",
    ),
    "changes that are committed whatever the token is": DeltaMutation(
        returning(delta_committer, "is_committed", value=False),
        "changes_that_are_committed_again_change_nothing",
    ),
    "changes that look for rows only in the first version": DeltaMutation(
        returning(delta_changes, "active_files", []),
        "rows_that_others_add_before_the_commit_are_replaced_too",
    ),
    "rows that keep nothing": DeltaMutation(
        method(RowKinds, "_keeping", lambda _, self, rows, upserts: (upserts, {})),
        "null_keeps_the_value_that_the_destination_has",
        "a_value_that_a_message_does_not_have_is_kept",
        a_crash_completes_a_row_once={"point": "commit.start"},
    ),
    "columns that the query does not have become NULL": DeltaMutation(
        method(ChangeFileWriter, "_kept_in_table", lambda _, self, changed: changed.kept),
        "a_column_that_the_query_does_not_have_keeps_its_value",
    ),
    "rows keep every column": DeltaMutation(
        returning(Changes, "is_partial", value=True), "other_columns_than_the_named_ones_become_null"
    ),
    "tasks that forget older rows": DeltaMutation(
        returning(ChangeFileWriter, "_older", ()),
        rows_of_a_batch_complete_each_other_in_their_order={"tasks": 1},
    ),
    "older rows that differ are not refused": DeltaMutation(
        _both(returning(ties, "_check_older", None), returning(change_files, "are_equal", value=True)),
        two_rows_of_one_place_that_give_different_values_are_refused={"tasks": 2},
    ),
    "late rows that give values": DeltaMutation(
        method(completed_rows, "not_late", lambda _, entries, late: row_numbers(len(entries))),
        "a_delivery_completes_the_rows_of_its_batches_one_after_the_other",
    ),
    "a history that forgets the versions of the table": DeltaMutation(
        method(versions, "timeline", lambda real, _, batches: real((), batches)),
        "a_change_ends_the_version_before",
        "changes_that_come_again_change_no_version",
        late_changes_split_versions={"tasks": 2},
        a_crash_ends_a_version_once={"point": "commit.start"},
    ),
    "a history with the versions as their tasks have ended them": DeltaMutation(
        method(versions, "_timelines", _as_written), "a_delivery_makes_the_versions_of_its_batches"
    ),
    "a history in a table that has none": DeltaMutation(
        _both(
            returning(delta_committer, "check_history", None),
            returning(changes_planning, "check_history", None),
        ),
        "a_table_that_has_no_versions_is_refused",
    ),
    "an abort that leaves the files of changes": DeltaMutation(
        returning(DeltaTableCommitter, "delete_files", 0), "changes_that_are_aborted_leave_nothing_behind"
    ),
    "a check that creates the table": DeltaMutation(
        returning(delta_plan, "before_creating", None),
        "a_check_before_the_start_finds_no_error_and_leaves_nothing",
    ),
    "a check that forgets errors": Mutation(
        returning(Report, "fail", None), "a_check_reports_a_server_that_does_not_answer", harness=HttpHarness
    ),
}
"""By what the changed product does."""
