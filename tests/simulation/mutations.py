"""The guards of the commit protocol, each with a change of the product that takes it away.

A change whose code is not found any more is an error that names it: the guard has to be thought over anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulation.features import Chosen
from tests.simulation.source_changes import (
    SourceChange,
    always,
    before,
    earlier,
    entry,
    instead,
    never,
    without,
)

FORMATS = {"delta": ("delta",), "iceberg": ("iceberg",), "requests": ("requests",), "row_log": ("requests",)}
"""By the folder of `committers/` that only these table formats use."""


class Mutation:
    """One guard taken away.

    Args:
        without: what the product does then
        changes: of the source; a guard that has a second one behind it goes together with that
        lakes: the table formats whose histories can show it, if not those that the changed folder is for
        needs: what a history must have: `decoupled`, `mixed`, `concurrent_drivers`, `one_store` or
            `own_stores` of forked checkpoints, or an event
        events: the only events of these histories, and many of them; for what is too rare among all events
        first: the seed that they begin at; for what is so rare that a long search had to find it
        targets: of the query in these histories
        features: of these histories
        test: the test that must fail, in place of histories; for what is too rare in any of them
    """

    def __init__(
        self,
        without: str,
        *changes: SourceChange,
        lakes: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        events: tuple[str, ...] = (),
        first: int = 0,
        targets: int = 1,
        features: tuple[str, ...] = (),
        test: str = "",
    ) -> None:
        self.without, self.changes = without, changes
        self.file = changes[0].file
        self.lakes = lakes or FORMATS.get(Path(self.file).parts[1], ("delta", "iceberg"))
        self.needs, self.first, self.test = frozenset(needs), first, test
        self.chosen = Chosen(events, targets, features)
        self.is_in_store = self.file.startswith("committers/store/")
        """The simulation has a store of its own: calls to both stores show it, not histories."""


DECISION = "committers/protocol/decision.py"
DELTA = "committers/delta/committer.py::DeltaTableCommitter"
ICEBERG = "committers/iceberg/committer.py::IcebergTableCommitter"
HAS_BATCH = "committers/protocol/token_check.py::has_batch"
EXPIRY = "committers/iceberg/expiry.py::SnapshotExpiry"
TWO_PHASE = "committers/protocol/two_phase.py::TwoPhaseCommitter"
DECOUPLED = "committers/protocol/decoupled.py::DecoupledCommitter"
DELIVERING = "committers/protocol/decoupled.py::DeliveringCommitter"
NEW_TARGET = "datasource/planning/new_target.py"
PLANNING = "datasource/planning/plan.py"
COMMITTING = "datasource/committing.py"
PREPARATION = "committers/protocol/preparing.py::Preparation"
RUNNER = "committers/protocol/commit_runner.py::CommitRunner"
RECOVERY = "committers/protocol/recovery.py::Recovery"
FORKS = "committers/protocol/checkpoint_forks.py::CheckpointForks"
CLEANUP = "committers/cleaning/cleanup.py::Cleanup"
DELIVERY = "committers/deliveries/deliverer.py::StreamDelivery"
DUE_BATCHES = "committers/deliveries/due_batches.py::DueBatches"
REQUESTS = "committers/requests/committer.py::RequestCommitter"
SENDING = "committers/requests/delivery.py"
REPLACED = "committers/requests/replaced_rows.py"
STORE = "committers/store/sql.py::SqlManifestStore"
STORE_PREPARATION = "committers/store/preparation.py::Preparation"
DELIVERY_QUERIES = "committers/store/delivery_queries.py"
MANIFEST_QUERIES = "committers/store/manifest_queries.py"
UPDATE_PREPARED = f"{MANIFEST_QUERIES}::_UPDATE_PREPARED"
OPERATOR_SKIP = "committers/store/operator_actions.py::SqlOperatorActions.skip"
ROW_LOGS = "committers/row_log/cleanup.py::CleanableRowLogs"
CLASSIFY = "committers/cleaning/cleanup.py::classify"
SNAPSHOT_CACHE = "committers/delta/snapshot_cache.py"
PROGRESS = "committers/store/progress.py"
DECOUPLED_TESTS = "tests/committers/test_decoupled.py"
FANOUT_TESTS = "tests/datasource/test_fanout.py"
TWO_PHASE_TESTS = "tests/committers/test_two_phase.py"
ROUTES_TARGET = "datasource/routing/sink.py::RoutesTarget"
STORE_TESTS = "tests/committers/store/test_store.py"
SHARED_CLEANUP = "datasource/lake/cleanup.py::SharedCleanable"
SHARING: Any = {"lakes": ("delta",), "targets": 2, "features": ("shared_files",)}
ROUTES: Any = {"lakes": ("requests",), "targets": 3, "features": ("routes",)}
KEY_SEARCH = "committers/changes/masked_rows.py::KeySearch"
TOMBSTONES = "committers/changes/tombstones.py::Tombstones"
LAST_CHANGES = "committers/changes/last_changes.py::last_changes"
DELTA_CHANGES = "committers/delta/changes.py::DeltaChanges"
COMPACTION_OF_DELTA = "committers/delta/compaction.py::DeltaCompactableTable"
UPSERTS: Any = {"features": ("upserts",)}
ICEBERG_CHANGES = "committers/iceberg/changes.py::IcebergChanges"
LETTERS_OF_COMMITS: Any = {"lakes": ("database",), "features": ("letters",)}
"""Only a database refuses rows in the commit."""

MUTATIONS: dict[str, Mutation] = {
    # Several targets
    "the manifests of all targets in one transaction": Mutation(
        "stores the manifest of each target on its own",
        instead(
            f"{PREPARATION}._put",
            "list(self._store.prepare_all(requests, self._run_id))",
            "[self._store.prepare_all([one], self._run_id)[0] for one in requests]",
        ),
        targets=2,
    ),
    "what one target shares with another is kept": Mutation(
        "deletes what the tasks have written for all targets if an earlier manifest holds for one",
        instead(
            f"{PREPARATION}._put",
            "{target.part for target, is_listed in zip(targets, listed, strict=True) if is_listed}",
            "{target.part for target in targets} if all(listed) else set()",
        ),
        needs=("concurrent_drivers",),
        targets=2,
    ),
    "digest of an earlier manifest, for every target": Mutation(
        "looks only at the first target's",
        instead(
            f"{PREPARATION}.prepare",
            "zip(self._targets, prepared, strict=True)",
            "zip(self._targets[:1], prepared)",
        ),
        test=f"{STORE_TESTS}::test_a_batch_that_any_target_has_from_other_offsets_is_refused",
    ),
    "no target gives up its batches for a replay that another one refuses": Mutation(
        "aborts the batches of the first target before the second one refuses the replay",
        without(f"{PLANNING}::plan_batch", "_check_replays("),
        needs=("decoupled",),
        events=("copy_checkpoint", "rewind_checkpoint", "deliver", "lose_record"),
        targets=2,
    ),
    "what the tasks leave out is durable": Mutation(
        "goes on without a look at the targets that the tasks have left out",
        never(f"{COMMITTING}::_commit_batch", "goal.name not in written"),
        targets=3,
    ),
    "each target has its part, in the plan": Mutation(
        "lists the files of the first target for all",
        instead(f"{PLANNING}::plan_batch", "part_of[name]", "0"),
        targets=3,
    ),
    "each target has its part, in the commit": Mutation(
        "commits the files of the first target for all",
        instead(
            "datasource/planning/batch_plan.py::CommittableMessage.of_target",
            "whole.payload[target.part]",
            "whole.payload[0]",
        ),
        targets=3,
    ),
    "each target has its own stream": Mutation(
        "prepares the batch of all targets in the stream of the first one",
        instead(
            f"{COMMITTING}::_commit_batch",
            "_target_batch(opened[name], target, messages, written_at)",
            "_target_batch(next(iter(opened.values())), target, messages, written_at)",
        ),
        targets=2,
    ),
    "the claim of every stream": Mutation(
        "claims the stream of the first target alone",
        instead(
            f"{PREPARATION}._put",
            "[target.manifest.batch.stream for target in targets]",
            "[targets[0].manifest.batch.stream]",
        ),
        targets=2,
    ),
    "an earlier manifest whose files are gone gives way, for every target": Mutation(
        "commits that of another target than the first",
        instead(
            f"{PREPARATION}._prepared",
            "target.committer.prepared.is_void(one.record)",
            "number == 0 and target.committer.prepared.is_void(one.record)",
        ),
        lakes=("delta",),  # in Delta the vacuum check is behind it: the second target is Iceberg's
        events=("vacuum",),
        targets=2,
    ),
    "a coupled query delivers what it prepares in a row log": Mutation(
        "leaves the batch prepared",
        without(f"{DELIVERING}.finish", "self._deliver("),
        targets=3,
    ),
    "a coupled query delivers what it finds prepared in a row log": Mutation(
        "takes a batch for done that an earlier run has prepared and not delivered",
        without(f"{DELIVERING}.confirm_skipped", "self._deliver("),
        targets=3,
    ),
    # Targets that come and go
    "a new target may start in the middle": Mutation(
        "takes the batches that it does not get for lost",
        instead(
            f"{NEW_TARGET}::can_start_with",
            "any((record is not None and (not record.awaits_replay) for record in before))",
            "False",
        ),
        targets=2,
        features=("new_target",),
    ),
    "newTarget=allow": Mutation(
        "refuses the target anyway",
        never(f"{NEW_TARGET}::_accept", "sink.options.new_target is NewTarget.ALLOW"),
        targets=2,
        features=("new_target",),
    ),
    "a new target may start in the middle, when its batch is prepared": Mutation(
        "asks for the batch before in its table",
        never(f"{DECOUPLED}._check_follows_table", "self._may_start_with(batch)"),
        needs=("decoupled",),
        targets=2,
        features=("new_target",),
    ),
    "a target is new only if another one has the batch before": Mutation(
        "goes on in a table that has lost batches with the store",
        instead(
            f"{NEW_TARGET}::can_start_with",
            "any((record is not None and (not record.awaits_replay) for record in before))",
            "True",
        ),
        needs=("decoupled",),
        events=("lose_store",),
        targets=2,
    ),
    # Targets that the rows name
    "the batch of a query with routes, and those of its tables, in one transaction": Mutation(
        "stores each manifest on its own",
        instead(
            f"{PREPARATION}._put",
            "list(self._store.prepare_all(requests, self._run_id))",
            "[self._store.prepare_all([one], self._run_id)[0] for one in requests]",
        ),
        **ROUTES,
    ),
    "the claim of the tables' streams": Mutation(
        "claims the query's own stream alone",
        instead(
            f"{PREPARATION}._put",
            "[target.manifest.batch.stream for target in targets]",
            "[targets[0].manifest.batch.stream]",
        ),
        **ROUTES,
    ),
    "a prepared batch of a query with routes is never replaced": Mutation(
        "replaces that of the query alone, whatever its tables have",
        without(f"{ROUTES_TARGET}.check_supersede", "raise "),
        **{**ROUTES, "events": ("rewind_checkpoint", "deliver")},
    ),
    "the streams of tables have gaps": Mutation(
        "asks each table for the batch before",
        never(f"{COMMITTING}::_open", "is_later"),
        **ROUTES,
    ),
    "each table gets its own rows": Mutation(
        "lists the files of all routes for the first table",
        instead(
            "datasource/routing/opening.py::_split",
            "tables.get(route_of(file))",
            "next(iter(tables.values()))",
        ),
        **ROUTES,
    ),
    "a file of a route tells its first row": Mutation(
        "numbers the rows of each file from 0, so that two rows have one id",
        instead("committers/row_log/names.py::RowLogName.parse", "int(match[3] or 0)", "0"),
        **ROUTES,
    ),
    "no table gets a batch that the query has from other offsets": Mutation(
        "prepares it for tables that do not have it, before the query is refused",
        without(f"{STORE_PREPARATION}.prepare_all", "_check_not_torn("),
        test=f"{STORE_TESTS}::test_no_stream_gets_rows_of_a_batch_that_another_stream_has_from_other_offsets",
    ),
    # Tables that share their files
    "clean-up: named by the other table": Mutation(
        "deletes files that only the other table names",
        without(f"{SHARED_CLEANUP}.names", "yield from self._partner.names()"),
        instead(f"{CLEANUP}._naming", "self._store.streams_of(query_id)", "self._cleaned"),
        needs=("decoupled",),
        events=("skip", "deliver", "collect_garbage", "lose_record"),
        **SHARING,
    ),
    "expiry deletes no file that the other table needs": Mutation(
        "deletes the data files of expired snapshots, which are below the location of the other table",
        instead(
            "committers/iceberg/deletion_guard.py::table_deletion_guard",
            "DeletionGuard([folder for folder in folders if has_folder(folder)], REMEDY)",
            "DeletionGuard([*folders, data_location(table)], REMEDY)",
        ),
        events=("compact", "append"),
        **SHARING,
    ),
    # Dead letters
    "dead letters of a commit are stored with its mark": Mutation(
        "marks the batch without the rows that the table has refused",
        without(f"{RUNNER}.commit_and_mark", "dead_letters=outcome.dead_letters"),
        **LETTERS_OF_COMMITS,
    ),
    "dead letters of a commit that another process has made": Mutation(
        "stores only those of its own commit",
        instead(
            f"{RUNNER}.commit_and_mark",
            "outcome.dead_letters",
            "outcome.dead_letters if isinstance(outcome, Committed) else {}",
        ),
        **LETTERS_OF_COMMITS,
    ),
    "refused rows are held until the store has them": Mutation(
        "deletes them before the batch is marked",
        earlier(f"{RUNNER}.commit_and_mark", "self.delete_refused_rows(", than="marked ="),
        **LETTERS_OF_COMMITS,
    ),
    "dead letters of a delivery": Mutation(
        "finishes the delivery without the rows that the table has refused",
        instead(f"{DELIVERY}._commit_and_finish", "outcome.dead_letters", "{}"),
        needs=("decoupled",),
        **LETTERS_OF_COMMITS,
    ),
    "refused rows are held until the delivery is finished": Mutation(
        "deletes them before",
        earlier(
            f"{DELIVERY}._commit_and_finish",
            "self._commit_runner.delete_refused_rows(",
            than="self._deliveries.finish(",
        ),
        needs=("decoupled",),
        **LETTERS_OF_COMMITS,
    ),
    "dead letters of what is settled": Mutation(
        "marks a batch that is in the table without the rows that the table has refused",
        without(f"{DELIVERY}._settle", "dead_letters=outcome.dead_letters"),
        needs=("mixed",),
        **LETTERS_OF_COMMITS,
    ),
    "dead letters of tasks are in the manifest": Mutation(
        "prepares the batch without the rows that its tasks have refused",
        without(f"{COMMITTING}::manifest_of", "dead_letters=letters"),
        features=("letters",),
    ),
    "a dead letter is not written": Mutation(
        "writes the bad rows with the others",
        instead("writers/bad_rows.py::BadRowWriter.write", "_without(batch, bad)", "batch"),
        features=("letters",),
    ),
    "dead letters are recorded with the progress (requests)": Mutation(
        "records only that the rows are done",
        without(f"{SENDING}::ProgressRecorder.record", "letters"),
        lakes=("requests",),
        features=("letters",),
    ),
    "a dead letter has the place of its row (requests)": Mutation(
        "counts the rows from where the delivery goes on",
        instead(
            "committers/requests/in_flight.py::RowsInFlight.take_refused", "place.row + number", "number"
        ),
        lakes=("requests",),
        first=4_900,
        features=("letters",),
    ),
    "the progress passes no row that could not be kept (requests)": Mutation(
        "records all that is acknowledged, after the store did not answer or there are too many dead letters",
        instead(f"{SENDING}::ProgressRecorder.record", "min([rows, *self._not_kept])", "rows"),
        test="tests/committers/test_request_delivery.py::"
        "test_the_progress_passes_no_row_that_could_not_be_kept",
    ),
    "dead letters go with their manifest": Mutation(
        "keeps those of a manifest that is replaced",
        instead(
            f"{MANIFEST_QUERIES}::delete_manifest",
            "(contents, dead_letters, lineage, manifests)",
            "(contents, lineage, manifests)",
        ),
    ),
    "dead letters come with their manifest": Mutation(
        "stores a manifest without them",
        without(f"{MANIFEST_QUERIES}::put_manifest", "put_dead_letters("),
    ),
    "a dead letter is stored once": Mutation(
        "stores it again when its commit or its request is repeated",
        instead(
            f"{MANIFEST_QUERIES}::put_dead_letters",
            "insert_into(connection, dead_letters).on_conflict_do_nothing()",
            "sa.insert(dead_letters)",
        ),
    ),
    "dead letters go with a skipped batch": Mutation(
        "keeps them, though they were saved with the other rows",
        without(OPERATOR_SKIP, "connection.execute(letters)"),
    ),
    # Keys
    "the last row of a key is sent": Mutation(
        "sends the first one of a delivery, and leaves out those that replace it",
        instead(
            f"{REPLACED}::_last_of_each_key",
            "table.filter(has_key).group_by(names, use_threads=False).aggregate([('row', 'max')])['row_max']",
            "table.filter(has_key).group_by(names, use_threads=False).aggregate([('row', 'min')])['row_min']",
        ),
        lakes=("requests",),
        features=("keys",),
    ),
    "what is sent is counted from where the delivery goes on": Mutation(
        "leaves out rows by their place in the whole delivery, though its beginning was sent before",
        instead(f"{REPLACED}::rows_to_send", "rows.position - window", "rows.position"),
        lakes=("requests",),
        features=("keys",),
    ),
    # Changes by key
    "rows are masked on the version that a commit is based on": Mutation(
        "masks after a conflict what it has found before",
        instead(
            f"{DELTA}._commit_once",
            "changes.file_actions(table, self._now_ms())",
            "changes.__dict__.setdefault('first', changes.file_actions(table, self._now_ms()))",
        ),
        events=("append", "delete_key", "maintain_table"),
        **UPSERTS,
    ),
    "what was found is of this manifest": Mutation(
        "masks the rows of the keys of an earlier batch",
        without(f"{DELTA}._changes_of", "self._changes.manifest != manifest"),
        **UPSERTS,
    ),
    "a deletion vector has the rows of the one before": Mutation(
        "brings rows back that were deleted in the same file",
        instead(f"{DELTA_CHANGES}._with_vectors", "_union(before.get(path), rows)", "rows"),
        **UPSERTS,
    ),
    "a file that is rewritten leaves out the rows of its deletion vector": Mutation(
        "brings rows back that were deleted in the same file",
        instead(f"{DELTA_CHANGES}._rewritten", "_union(before.get(path), rows)", "rows"),
        **UPSERTS,
    ),
    "rows of a batch that lose are masked": Mutation(
        "keeps the rows that another task has written of a key",
        instead(f"{KEY_SEARCH}.masked_rows", "self._losing_rows(late, new_files)", "{}"),
        **UPSERTS,
    ),
    "rows that are late are masked": Mutation(
        "keeps the older row beside the one of the table",
        never(f"{KEY_SEARCH}._losing_rows", "lost_late is not None"),
        **UPSERTS,
    ),
    "late rows are ignored": Mutation(
        "replaces newer rows of the table",
        never(f"{KEY_SEARCH}.masked_rows", "self._ignores_late"),
        **UPSERTS,
    ),
    "deletions are remembered": Mutation(
        "lets older rows bring a deleted key back",
        without(f"{KEY_SEARCH}.masked_rows", "late = pc.unique(pa.concat_arrays("),
        **UPSERTS,
    ),
    "deletions are remembered before the commit": Mutation(
        "forgets them if it dies after the commit",
        without(f"{KEY_SEARCH}.masked_rows", "self._tombstones.add("),
        before(
            f"{DELTA_CHANGES}.clean_up",
            "self._tombstones.prune()",
            "self._tombstones.add(self._search._last.keys)",
        ),
        lakes=("delta",),
        **UPSERTS,
    ),
    "the last deletion of a key counts": Mutation(
        "remembers the first one that it has read",
        without("committers/changes/tombstones.py::_Index.put", "known[key] < order"),
        **UPSERTS,
    ),
    "deletions are remembered for some time": Mutation(
        "deletes all files of deletions after each commit",
        instead(f"{TOMBSTONES}.prune", "_newest(name) < oldest", "True"),
        **UPSERTS,
    ),
    "small files of deletions are merged": Mutation(
        "deletes them without writing their deletions anew",
        without(f"{TOMBSTONES}._merge", "if len(kept):"),
        **UPSERTS,
    ),
    "batches of a delivery apply in their order": Mutation(
        "takes the greatest row of all batches",
        instead(LAST_CHANGES, "[batches, *keys.order]", "[*keys.order, batches]"),
        needs=("decoupled",),
        **UPSERTS,
    ),
    "late rows of a delivery are ignored": Mutation(
        "takes the row of the last batch, be it older",
        instead(LAST_CHANGES, "[*keys.order, batches]", "[batches, *keys.order]"),
        needs=("decoupled",),
        **UPSERTS,
    ),
    "keys are kept until the commit": Mutation(
        "deletes the key files before it",
        before(
            f"{DELTA}._commit_once",
            "crash_points.reach('commit.start', batch.batch_id)",
            "if changes is not None:\n    changes.clean_up(table)",
        ),
        **UPSERTS,
    ),
    "missing keys may be those of a batch that is committed": Mutation(
        "takes the table for changed if another process has deleted them since the token was read",
        instead(
            f"{DELTA}._commit_once",
            "return Conflict(f'another process has committed the batch or removed files meanwhile: {error}')",
            "raise",
        ),
        events=("recover",),
        **UPSERTS,
    ),
    "what an attempt has written is kept if it is committed": Mutation(
        "deletes the deletion vectors after a lost response",
        always(f"{DELTA}._commit_once", "isinstance(outcome, Conflict)"),
        **UPSERTS,
    ),
    "clean-up: deletion vectors that the table names": Mutation(
        "deletes those that are in use",
        instead(
            "committers/delta/cleanup.py::DeltaCleanableTable._names_in_json",
            "names.union(*map(_vector_names, places))",
            "names",
        ),
        **UPSERTS,
    ),
    "compaction leaves files alone that have lost rows meanwhile": Mutation(
        "brings back the rows that were deleted since it has read them",
        without(
            f"{COMPACTION_OF_DELTA}.replace",
            "dict(group.deleted) == {one.path: origins[one.path] for one in group.sources "
            "if one.path in origins}",
        ),
        test="tests/committers/test_delta_changes.py::"
        "test_a_compaction_gives_way_to_rows_that_are_deleted_meanwhile",
    ),
    "missing files may be those of a batch that was committed since": Mutation(
        "takes a batch for lost if another process has deleted its keys after the token was read",
        never(f"{RECOVERY}._recovery_of", "missing and is_in_table("),
        test="tests/committers/test_iceberg_changes.py::"
        "test_a_batch_that_another_process_commits_during_recovery_is_not_missing",
    ),
    "rows are found on the metadata that a commit is based on (Iceberg)": Mutation(
        "deletes after a conflict what it has found before",
        instead(
            "committers/iceberg/snapshot.py::prepare_attempt",
            "changes.file_changes(table, transaction.table_metadata.schema(), live)",
            "changes.__dict__.setdefault('first', "
            "changes.file_changes(table, transaction.table_metadata.schema(), live))",
        ),
        events=("append", "delete_key", "maintain_table"),
        **UPSERTS,
    ),
    "what was found is of this manifest (Iceberg)": Mutation(
        "deletes the rows of the keys of an earlier batch",
        without(f"{ICEBERG}._changes_of", "self._changes.manifest != manifest"),
        **UPSERTS,
    ),
    "a delete file has the rows of the one that it replaces": Mutation(
        "brings rows back that were deleted in the same file",
        instead(
            f"{ICEBERG_CHANGES}._with_deletes",
            "union([rows, self._search.deleted_rows.of(file, own)])",
            "rows",
        ),
        **UPSERTS,
    ),
    "a file that is rewritten leaves out its deleted rows (Iceberg)": Mutation(
        "brings rows back that were deleted in the same file",
        instead(f"{ICEBERG_CHANGES}._rewritten", "union([before, rows])", "rows"),
        events=("append", "delete_key"),
        **UPSERTS,
    ),
    "rows of a batch that lose are deleted (Iceberg)": Mutation(
        "keeps the rows that another task has written of a key",
        never(f"{ICEBERG_CHANGES}._with_deletes", "lost is not None and len(lost) < new.rows"),
        **UPSERTS,
    ),
    "delete files of several data files apply": Mutation(
        "takes rows for deleted only if a delete file names their data file alone",
        instead(
            "committers/iceberg/position_deletes.py::DeleteFiles.applying_to",
            "_may_have(one.data_file, path)",
            "False",
        ),
        events=("append", "delete_key", "maintain_table"),
        **UPSERTS,
    ),
    "keys are kept until the commit (Iceberg)": Mutation(
        "deletes the key files before it",
        before(
            f"{ICEBERG}._commit_once",
            "crash_points.reach('commit.start', batch.batch_id)",
            "self._delete_key_files()",
        ),
        **UPSERTS,
    ),
    "compaction leaves files alone that have lost rows meanwhile (Iceberg)": Mutation(
        "brings back the rows that were deleted since it has read them",
        instead(
            "committers/iceberg/compaction.py::_Files.has",
            "origins == dict(group.deleted)",
            "True",
        ),
        test="tests/committers/test_iceberg_changes.py::"
        "test_rows_that_are_deleted_during_a_compaction_do_not_come_back",
    ),
    # The table
    "token check (Delta)": Mutation(
        "commits without looking for the batch's token",
        instead(f"{DELTA}._prepare_attempt", "self._is_committed(table, token, manifest)", "False"),
    ),
    "token check (Iceberg)": Mutation(
        "commits without looking for the batch's token",
        never(f"{ICEBERG}.commit", "is_committed("),
    ),
    "same-handle check (Delta)": Mutation(
        "commits on a newer version than the one whose token was checked",
        instead(
            f"{DELTA}.commit",
            "self._commit_once(attempt, manifest, content)",
            "self._commit_once(self._newest(content), manifest, content)",
        ),
    ),
    "the log entry of a cached snapshot (Delta)": Mutation(
        "takes the next version for free in a log that foreign writers have moved on and cleaned up",
        always(f"{SNAPSHOT_CACHE}::advance", "last.is_there()"),
        never(f"{SNAPSHOT_CACHE}::TableSnapshot.append", "not tail.is_there()"),
        events=("append", "expire"),
    ),
    "the log entry that a commit was based on (Delta)": Mutation(
        "takes an entry for a commit although it went behind what foreign writers have cleaned up",
        never(f"{SNAPSHOT_CACHE}::TableSnapshot.append", "not tail.is_there()"),
        events=("append", "expire"),
    ),
    "compare-and-set of the branch's head (Iceberg)": Mutation(
        "sends the snapshot without the requirement that the head is the one that was checked",
        without("committers/iceberg/snapshot.py::Attempt.of", "*transaction.requirements"),
    ),
    "digest in the table's token (Delta)": Mutation(
        "takes another batch of the same id for this one",
        never(HAS_BATCH, "not batch.digest.startswith(digest)"),
        lakes=("delta",),
    ),
    "digest in the table's token (Iceberg)": Mutation(
        "takes another batch of the same id for this one",
        never(HAS_BATCH, "not batch.digest.startswith(digest)"),
        lakes=("iceberg",),
    ),
    "RESTORE check (Delta)": Mutation(
        "trusts the token of a table that was restored",
        never("committers/delta/table.py::check_not_restored", "restore.version > committed"),
    ),
    "rollback check (Iceberg)": Mutation(
        "trusts the token of a branch that was rolled back",
        always("committers/iceberg/table.py::check_not_rolled_back", "_is_behind_head("),
    ),
    "rollback check before an expiry (Iceberg)": Mutation(
        "expires the snapshots that show that its own stream's batches were rolled back",
        without(f"{EXPIRY}._expire", "self._check(table.metadata)"),
        test="tests/committers/test_iceberg_rollback.py::test_the_expiry_of_the_stream_keeps_what_shows_the_rollback",
    ),
    "vacuum check (Delta)": Mutation(
        "commits files that a vacuum has deleted since recovery checked them",
        without(f"{DELTA}._prepare_attempt", "self._check_not_vacuumed("),
    ),
    "vacuum check where the log was cleaned up (Delta)": Mutation(
        "commits files that a vacuum has deleted if the log has no entry of it any more",
        without(f"{DELTA}._prepare_attempt", "not is_known"),
        events=("append", "vacuum", "expire"),
    ),
    "an unknown outcome is no failure (Iceberg)": Mutation(
        "deletes an attempt's manifests although its request may still be committed",
        always("committers/iceberg/snapshot.py::Attempt.give_up", "not failed.can_commit_later"),
    ),
    # The two-phase committer
    "digest of a committed batch": Mutation(
        "skips a batch id that was committed from other offsets",
        entry(f"{DECISION}::COUPLED", "RecordStatus.COMMITTED_OTHER", "_ALWAYS_SKIP"),
    ),
    "digest of the token, before the write": Mutation(
        "skips if the table holds the batch id, whatever its offsets",
        always(f"{DECISION}::token_position", "token.matches(batch.digest)"),
    ),
    "token decides when the store knows nothing": Mutation(
        "writes a batch that the store does not know, whatever the table holds",
        entry(f"{DECISION}::COUPLED", "RecordStatus.NOTHING", "(_A.WRITE,) * 5"),
        lakes=("database",),  # a table with a history has the digest of an earlier batch, too
    ),
    "a batch behind the token is refused": Mutation(
        "skips a batch behind the table's token that the store does not know",
        instead(f"{DECISION}::_BY_TOKEN", "_A.REFUSE_BEHIND", "_A.SKIP"),
        lakes=("database",),
    ),
    "other offsets supersede a pending batch": Mutation(
        "commits the old manifest under a batch id that has other offsets now",
        never(f"{RECOVERY}._recovery_of", "replay.digest != batch.digest"),
    ),
    "existence check": Mutation(
        "recovers a manifest whose files are gone",
        never(f"{RECOVERY}._recovery_of", "missing"),
    ),
    "recovery leaves batches after the replayed one": Mutation(
        "commits pending batches of a rewound checkpoint before their replay",
        without(f"{RECOVERY}.recover_each", "if replay is not None and record.batch"),
    ),
    "first prepared wins, in the committer": Mutation(
        "commits its own manifest although another one holds for the batch",
        always(f"{TWO_PHASE}.finish", "prepared.is_ours"),
    ),
    "digest of an earlier manifest": Mutation(
        "commits an earlier run's manifest of the batch, from whatever offsets",
        never(f"{PREPARATION}.prepare", "one.record.batch.digest != target.manifest.batch.digest"),
        needs=("copy_checkpoint", "decoupled", "one_store"),  # coupled, the manifest is read again
    ),
    "abort rule: only what never reached its commit": Mutation(
        "deletes the files of a batch whose commit has failed",
        always("datasource/committing.py::abort_batch", "None in messages"),
    ),
    "an unknown outcome of prepare deletes nothing": Mutation(
        "deletes the files of a batch although its manifest may have been stored",
        instead(f"{PREPARATION}.prepare", "(FencedError, RetryableError)", "Exception"),
        test="tests/committers/test_two_phase.py::test_an_unknown_outcome_of_prepare_deletes_nothing",
    ),
    "mark only what is committed": Mutation(
        "marks a batch COMMITTED whatever became of its commit",
        before(f"{RUNNER}.commit_and_mark", "try:", "self._store.finish(batch, ManifestState.COMMITTED)"),
    ),
    "a batch aborted during its commit is no success": Mutation(
        "goes on although another run has aborted the batch",
        never(f"{RUNNER}.commit_and_mark", "self.state(batch) is not ManifestState.COMMITTED"),
        test="tests/committers/test_two_phase.py::test_a_superseded_driver_gets_an_error",
    ),
    "what can never be committed is aborted at once": Mutation(
        "leaves a manifest pending that the table has refused for its offsets",
        without(f"{RUNNER}.commit_and_mark", "self._store.finish("),
        before("committers/delta/table.py::earlier_digest", "last = committed_version(", "return None"),
        before("committers/iceberg/table.py::earlier_digest", "for snapshot in line_of(", "return None"),
    ),
    "an earlier manifest whose files are gone gives way": Mutation(
        "commits the manifest of a run that was aborted before its prepare arrived",
        instead(f"{PREPARATION}._prepared", "target.committer.prepared.is_void(one.record)", "False"),
        lakes=("iceberg",),  # in Delta the vacuum check is behind it
    ),
    "the table is read before the store": Mutation(
        "takes a batch that a concurrent driver has just committed for one with other offsets",
        earlier(f"{TWO_PHASE}._decide", "record =", than="token = self._table.token("),
        test="tests/committers/test_two_phase.py::test_a_concurrent_commit_during_planning_is_no_mismatch",
    ),
    # The store
    "fence: prepare needs the claim": Mutation(
        "lets a run prepare that was taken over",
        without(f"{STORE_PREPARATION}.prepare", "current.run_id != run_id"),
    ),
    "first prepared wins": Mutation(
        "replaces a manifest that is PREPARED",
        instead(
            "committers/store/preparation.py::_gives_way",
            "return record.state is ManifestState.ABORTED",
            "return record.state is not ManifestState.COMMITTED",
        ),
    ),
    "what is skipped while it is written stays skipped": Mutation(
        "prepares the batch again, which the token of a later one then marks as committed",
        never(f"{STORE_PREPARATION}.prepare", "record.is_skipped and record.batch == batch"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_that_was_skipped_while_a_slow_driver_wrote_it_is_not_prepared",
    ),
    "compare-and-set of the mark": Mutation(
        "changes the state of a batch whatever it is",
        without(UPDATE_PREPARED, "manifests.c.state == ManifestState.PREPARED.value"),
        instead(
            UPDATE_PREPARED,
            "manifests.c.digest == sa.bindparam('given_digest')",
            "sa.bindparam('given_digest') != ''",
        ),
    ),
    # Clean-up
    "clean-up: settled": Mutation(
        "deletes files of batches that may still be committed",
        without(CLASSIFY, "if name.batch_id > settled[name.query_id]:"),
        without(f"{CLEANUP}._still_unneeded", "name.batch_id <= settled.get(name.query_id, -1)"),
    ),
    "clean-up: named by the table": Mutation(
        "deletes files that a version of the table names",
        without(f"{CLEANUP}.find", "for names in self._table.names("),
        without(f"{CLEANUP}._still_unneeded", "for names in self._table.names("),
        never(f"{CLEANUP}._names_in_manifests", "verdict is FileStatus.UNNEEDED"),
        never(f"{CLEANUP}._names_of_batches", "query_id == stream.query_id"),
    ),
    "clean-up: ours": Mutation(
        "deletes files of foreign writers",
        before(CLASSIFY, "if name is None or", "if name is None:\n    return FileStatus.UNNEEDED"),
        without(CLASSIFY, "name is None"),
        without(f"{CLEANUP}.find", "for names in self._table.names("),
        instead(
            f"{CLEANUP}._still_unneeded",
            "name is not None and name.batch_id <= settled.get(name.query_id, -1)",
            "name is None or name.batch_id <= settled.get(name.query_id, -1)",
        ),
        without(f"{CLEANUP}._still_unneeded", "for names in self._table.names("),
    ),
    "clean-up: grace period": Mutation(
        "deletes files however young they are",
        always(CLASSIFY, "file.modified_at < written_before"),
    ),
    # Snapshot expiry
    "expiry: what stays is needed": Mutation(
        "deletes files that snapshots which stay need as well",
        instead(
            "committers/iceberg/reachability.py::expired_files",
            "snapshot.snapshot_id not in expired_ids",
            "False",
        ),
        before("committers/iceberg/reachability.py::needed_again", "needed =", "return set()"),
    ),
    "expiry: files go after the snapshots": Mutation(
        "deletes the files of a plan although its snapshots are still in the table",
        always(f"{EXPIRY}._due", "expiry.expired_at is not None"),
        instead(f"{EXPIRY}._delete", "needed_again(table.io, table.metadata, files)", "set()"),
        test="tests/committers/test_iceberg_expiry.py::"
        "test_the_files_of_snapshots_that_a_crash_left_in_the_table_stay",
    ),
    "expiry: grace period": Mutation(
        "deletes files of snapshots that have just expired",
        instead(f"{EXPIRY}._due", "now - timedelta(seconds=self._policy.grace_s)", "now"),
    ),
    # Deliveries
    "recovery ends at the first batch that stays pending": Mutation(
        "goes on with the batches after it",
        never(f"{RECOVERY}.recover_each", "recovered.state is not ManifestState.COMMITTED"),
    ),
    "overlap check": Mutation(
        "commits a delivery to a table that holds a part of it",
        never("committers/deliveries/contract.py::check_none_committed", "first <= token.batch_id"),
    ),
    "settle": Mutation(
        "delivers batches again that the table's token has passed",
        without(f"{DELIVERY}._round", "self._settle("),
    ),
    "files of a delivery are checked before it is prepared": Mutation(
        "delivers batches whose files are gone",
        without(f"{DELIVERY}._round", "self._check_files("),
        lakes=("iceberg",),  # in Delta the vacuum check is behind it
    ),
    "a rewritten delivery whose files are gone is abandoned": Mutation(
        "commits it anyway",
        never(f"{DELIVERY}._commit_unfinished", "missing"),
    ),
    "deliverAfterCheckpoint": Mutation(
        "delivers batches that Spark's commits log does not have",
        instead(
            f"{DUE_BATCHES}._deliverable",
            "last is None or one.batch.batch_id <= last",
            "True",
        ),
    ),
    "a failed overlap check abandons the delivery": Mutation(
        "tries a delivery again of which another process has committed a part",
        without(f"{DELIVERY}._commit_and_finish", "self._deliveries.abandon("),
        test="tests/committers/test_deliverer.py::"
        "test_a_delivery_of_which_another_process_has_committed_a_part_is_abandoned",
    ),
    "the batches before are known, or delivered": Mutation(
        "goes on although batches were lost with the store",
        never(f"{DECOUPLED}._check_nothing_lost", "last < batch.batch_id - 1"),
    ),
    "digest of a prepared batch (decoupled)": Mutation(
        "skips a batch that is prepared from other offsets",
        entry(f"{DECISION}::DECOUPLED", "RecordStatus.PREPARED_OTHER", "_ALWAYS_SKIP"),
        test="tests/committers/test_decoupled.py::test_a_rewound_checkpoint_supersedes_pending_batches",
    ),
    "the batch before is the same": Mutation(
        "writes a batch behind one that the store has from other offsets",
        never(f"{FORKS}.check_before", "digest != before.batch.digest"),
    ),
    "an aborted batch before is the same": Mutation(
        "writes a batch behind one that a fork had put in its place and an operator has aborted",
        before(f"{FORKS}.check_before", "digest, what =", "if before.is_dropped:\n    return before"),
        test=f"{DECOUPLED_TESTS}::test_a_checkpoint_fork_is_an_error_even_after_an_aborted_batch",
    ),
    "an operator aborts what was shown": Mutation(
        "aborts whatever is prepared by then",
        without("operating/admin.py::abort", "expected=expected"),
        test="tests/delivery/test_delivery_commands.py::test_abort_aborts_only_named_batches",
    ),
    "the batch before waits for no replay": Mutation(
        "writes a batch behind one that was aborted and never written again",
        never(f"{FORKS}.check_before", "before.awaits_replay"),
        needs=("copy_checkpoint", "decoupled"),
    ),
    "the batch before is still the same when one is prepared": Mutation(
        "prepares a batch behind one that a fork of the checkpoint has replaced meanwhile",
        instead(f"{DECOUPLED}.batch_before", "digest_before if batch_id == last else None", "None"),
        without(f"{DECOUPLED}.batch_before", "is_delivered=True"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_is_not_prepared_behind_the_one_of_a_copy",
    ),
    "what waits behind a skipped batch is aborted with it (decoupled)": Mutation(
        "aborts only behind a prepared one, when other rows come in its place",
        instead(
            f"{DECOUPLED}.begin",
            "action is Action.SUPERSEDE and record is not None",
            "action is Action.SUPERSEDE and record is not None and (record.state is ManifestState.PREPARED)",
        ),
        test=f"{DECOUPLED_TESTS}::test_a_later_batch_is_never_left_waiting_behind_one_that_is_written_again",
    ),
    "a refused fork aborts nothing": Mutation(
        "aborts the other fork's batch before it is refused",
        before(
            f"{DECOUPLED}.check",
            "if action is not Action.SKIP or is_pending",
            "if action is Action.SUPERSEDE and record is not None:\n    self.prepared.supersede(record)",
        ),
        earlier(f"{TWO_PHASE}.begin", "if action is Action.SUPERSEDE", than="self._forks.check_before("),
        needs=("decoupled", "one_store", "concurrent_drivers"),
        events=("skip", "copy_checkpoint"),
    ),
    "a skipped batch hides no gap": Mutation(
        "checks no further than the batch before",
        without(f"{FORKS}.check_before", "if (gap := self.gap_before("),
        test=f"{DECOUPLED_TESTS}::test_a_skipped_batch_hides_none_that_was_given_up",
    ),
    "the manifest of other rows is not taken": Mutation(
        "commits whatever the store has under the batch id by now",
        without("committers/protocol/commit_runner.py::checked_manifest", "manifest.batch != batch"),
        test=f"{TWO_PHASE_TESTS}::test_the_manifest_of_other_rows_is_not_taken_for_an_earlier_one",
    ),
    "a batch whose files are gone stays prepared until its replay is": Mutation(
        "aborts it, though a decoupled driver may have gone on behind it",
        instead(
            f"{RECOVERY}._left_for_replay",
            "Recovered(record, ManifestState.PREPARED, f'the replay writes it again: {why}')",
            "self._finish(record, ManifestState.ABORTED, f'the replay writes it again: {why}')",
        ),
        test=f"{DECOUPLED_TESTS}::test_a_coupled_replay_whose_files_are_gone_leaves_what_a_twin_has_logged",
    ),
    "a batch that the table refuses gives way to its replay": Mutation(
        "tries the earlier manifest again and again",
        never(f"{TWO_PHASE}.finish", "preparation.replace(target, earlier)"),
        events=("roll_back",),
    ),
    "a delivery goes by the store alone": Mutation(
        "prepares a batch behind one that the store has aborted, if the table has it",
        never(f"{FORKS}.check_before", "not before.is_dropped"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_is_not_prepared_behind_one_that_the_store_has_given_up_though_the_table_has_it",
    ),
    "what was skipped behind an aborted batch waits for its replay": Mutation(
        "keeps the operator's skip for rows that followed other rows",
        without(
            f"{MANIFEST_QUERIES}::abort_from",
            "connection.execute(sa.update(manifests).where(*are_skipped).values(",
        ),
    ),
    "an operator skips what was shown": Mutation(
        "skips whatever rows have come under the batch id meanwhile",
        never(OPERATOR_SKIP, "expected.digest != row.digest"),
    ),
    "a start stops at batches behind one that waits for its replay": Mutation(
        "writes the next batch, whose token says that they are committed",
        never(f"{RECOVERY}.recover_each", "record.batch.batch_id < replay.batch_id"),
        test=f"{DECOUPLED_TESTS}::test_a_coupled_query_does_not_go_on_over_a_batch_that_waits_for_its_replay",
    ),
    "recovery stops behind a batch that waits for its replay": Mutation(
        "commits what was prepared behind it",
        instead(f"{RECOVERY}.recover_each", "self._forks.gap_before(record.batch)", "None"),
        needs=("mixed", "own_stores"),
        events=("copy_checkpoint", "recover"),
    ),
    "delivered meanwhile": Mutation(
        "calls a batch lost whose files a delivery has just rewritten",
        never(f"{RECOVERY}._recovery_of", "self._commit_runner.state(batch) is ManifestState.COMMITTED"),
        test=f"{TWO_PHASE_TESTS}::test_a_batch_delivered_during_recovery_is_no_loss",
    ),
    "what an operator has skipped is not written again": Mutation(
        "aborts, for its replay, what was prepared behind it",
        entry(f"{DECISION}::DECOUPLED", "RecordStatus.SKIPPED", "_SUPERSEDE"),
        needs=("decoupled", "skip", "concurrent_drivers"),
    ),
    "only a replay aborts a batch that is in the table from other offsets": Mutation(
        "aborts it although Spark does not run it again",
        without(f"{RECOVERY}._recovery_of", "if not is_replayed:\n    raise refused("),
        test=f"{TWO_PHASE_TESTS}::"
        "test_a_pending_batch_that_the_table_has_otherwise_is_not_forgotten_once_spark_has_moved_on",
    ),
    "the table's last batch is this checkpoint's": Mutation(
        "writes a batch behind one that a fork has committed, if the store was lost",
        without(f"{FORKS}.check_before", "self._check_last_in_table("),
        needs=("decoupled", "own_stores"),
        events=("copy_checkpoint", "lose_store"),
    ),
    "a batch is committed only behind what its store knows": Mutation(
        "commits behind a batch that a fork of the checkpoint has committed meanwhile",
        without(f"{RUNNER}._check_attempt", "self._forks.check_token("),
        test=f"{TWO_PHASE_TESTS}::test_a_fork_stops_later_batches",
    ),
    "the token is of this very stream": Mutation(
        "settles batches by the token of a fork of the checkpoint",
        without(f"{DELIVERY}._settle", "self._check_token_is_ours("),
        test="tests/committers/test_deliverer.py::test_a_token_that_the_store_has_never_heard_of_marks_nothing",
    ),
    "sources: named by the table": Mutation(
        "deletes files that a rewritten delivery has replaced, although the table names them",
        instead("delivery/sources.py::_remove", "table.names()", "()"),
    ),
    "sources: the delivery's own files stay": Mutation(
        "deletes files that a rewritten delivery has kept, and those that it has made",
        instead(
            "delivery/sources.py::_replaced",
            "set(_paths(store.deliveries.sources(delivery))) - kept",
            "set(_paths(store.deliveries.sources(delivery))) | kept",
        ),
        instead("delivery/sources.py::_remove", "table.names()", "()"),
    ),
    # Deliveries in the store
    "fence: a delivery needs the lease": Mutation(
        "lets a process prepare a delivery that was taken over",
        without(f"{DELIVERY_QUERIES}::check_lease", "(row.holder, row.fence) == (lease.holder, lease.fence)"),
        without(f"{DELIVERY_QUERIES}::check_lease", "row.expires_at"),
    ),
    "fence: only the holder of the lease abandons": Mutation(
        "frees the batches of a delivery that another process is committing",
        without("committers/store/deliveries.py::SqlDeliveries.abandon", "delivery_queries.check_lease("),
    ),
    "a delivery leaves no batch out": Mutation(
        "takes a delivery of batches that are not pending any more, or omits one that is",
        never(f"{DELIVERY_QUERIES}::check_deliverable", "found != expected"),
    ),
    "one unfinished delivery at most": Mutation(
        "prepares a second one",
        instead(f"{DELIVERY_QUERIES}::check_deliverable", "row.delivery_id is not None", "False"),
    ),
    "a batch that is being delivered is not aborted": Mutation(
        "aborts it although the delivery may be committed",
        instead(f"{STORE}.finish", "state is ManifestState.ABORTED", "False"),
    ),
    "a batch that is being delivered is not skipped": Mutation(
        "skips it although the delivery may be committed",
        without(OPERATOR_SKIP, "if row.delivery_id is not None:"),
    ),
    "compare-and-set of a delivery": Mutation(
        "finishes a delivery that was abandoned, or another one of the same number",
        without(f"{DELIVERY_QUERIES}::end_delivery", "is_prepared"),
        without(f"{DELIVERY_QUERIES}::end_delivery", "is_same"),
    ),
    "a follower needs the batch before": Mutation(
        "prepares a batch behind one that was lost with the store, or aborted, since it was planned",
        never(f"{STORE_PREPARATION}.prepare", "request.follows is not None"),
    ),
    "other rows do not replace those that a later batch follows": Mutation(
        "prepares them in place of an aborted batch, whatever was prepared behind it since",
        never(f"{STORE_PREPARATION}.prepare", "record.batch != batch"),
    ),
    "compare-and-set of an abort": Mutation(
        "aborts what a concurrent driver has prepared since the record was read",
        instead(
            "committers/store/sql.py::_is_still",
            "row is not None and manifest_queries.to_record(expected.batch.stream, row) == expected",
            "True",
        ),
    ),
    "delivery waits for a replay": Mutation(
        "delivers batches behind one that was aborted for its replay",
        instead(f"{DELIVERY_QUERIES}::find_gap", "gap: int | None = connection.scalar(query)", "gap = None"),
    ),
    "clean-up: named by an unfinished delivery": Mutation(
        "deletes the rewritten files of a delivery that is not finished",
        never("committers/store/contents.py::in_state", "state is not ManifestState.ABORTED"),
        without(CLASSIFY, "if name.batch_id > settled[name.query_id]:"),
        without(f"{CLEANUP}._still_unneeded", "name.batch_id <= settled.get(name.query_id, -1)"),
    ),
    # The row log
    "what is delivered is not sent again (requests)": Mutation(
        "sends batches that the progress in the store says are delivered",
        never(f"{REQUESTS}.commit", "self._is_delivered(manifest, seen.token)"),
        instead(f"{REQUESTS}._undelivered", "batch.batch.batch_id > last", "True"),
    ),
    "only what is acknowledged is recorded (requests)": Mutation(
        "records the row after the last acknowledged one, too",
        instead(f"{SENDING}::deliver.acknowledged", "up_to + 1", "up_to + 2"),
    ),
    "the token follows the last row of its batch (requests)": Mutation(
        "records a batch as delivered when one row is missing",
        instead(
            f"{SENDING}::ProgressRecorder.record",
            "bisect_right(self._ends, rows)",
            "bisect_right(self._ends, rows + 1)",
        ),
    ),
    "a delivery ends when all is acknowledged (requests)": Mutation(
        "records the end while entries are in flight",
        without(f"{SENDING}::deliver", "writer.flush()"),
    ),
    "a row keeps its id when its delivery goes on (requests)": Mutation(
        "counts the rows of a partition from where the delivery goes on",
        instead(
            "committers/row_log/log.py::RowLog._read_file",
            "file.first_row + row + first",
            "file.first_row + row + first - skipped",
        ),
    ),
    "the row log is kept until the progress is recorded": Mutation(
        "deletes the files of a batch before its rows are sent",
        before(f"{REQUESTS}.commit", "if batches is None", "self._delete(stream, batches)"),
    ),
    "the row log is kept for targets that need it": Mutation(
        "deletes the files of a batch that another target of the query has not delivered",
        instead(f"{REQUESTS}._delete", "one.batch.batch_id not in needed", "True"),
        targets=2,
    ),
    "the row log is not kept for what a target has delivered": Mutation(
        "keeps the files of a batch whose record is behind the progress",
        without(f"{PROGRESS}::SqlProgress.needed_by_others", "_IS_AHEAD"),
        test=f"{FANOUT_TESTS}::test_a_target_whose_delivery_died_after_its_last_record_keeps_no_files",
    ),
    "the row log is not kept for a skipped batch": Mutation(
        "keeps the files of a batch that an operator has skipped for another target",
        without(f"{PROGRESS}::SqlProgress.needed_by_others", "IS_PREPARED"),
        test=f"{FANOUT_TESTS}::test_operators_act_on_one_target",
    ),
    "only targets with the same row log share it": Mutation(
        "keeps files for a target that reads another row log",
        instead(f"{PROGRESS}::_sharing", "row_log_in(row.settings) == location", "True"),
        test=f"{FANOUT_TESTS}::test_a_target_with_a_row_log_of_its_own_does_not_share_it",
    ),
    "clean-up of the row log: needed by another target": Mutation(
        "deletes what the target itself has delivered",
        instead(f"{ROW_LOGS}._token", "self._progress.settled_by_others(stream, log.location)", "None"),
        test=f"{FANOUT_TESTS}::test_clean_up_keeps_what_another_target_needs",
    ),
    "clean-up of the row log: a new target": Mutation(
        "deletes files that a target without any batch may still prepare",
        instead(f"{PROGRESS}::_settled", "-1", "None"),
        test=f"{FANOUT_TESTS}::test_clean_up_waits_for_a_new_target",
    ),
    "clean-up of the row log: a removed target": Mutation(
        "waits for batches that a target which was removed never gets",
        instead(f"{PROGRESS}::SqlProgress.settled_by_others", "other.table_uri in targets", "True"),
        test=f"{FANOUT_TESTS}::test_clean_up_does_not_wait_for_a_target_that_was_removed",
    ),
    "clean-up of the row log: a batch that is written again": Mutation(
        "deletes the files of a batch that was aborted in another target for its replay",
        instead(f"{PROGRESS}::_settled", "sa.or_(IS_PREPARED, may_return)", "IS_PREPARED"),
        test=f"{FANOUT_TESTS}::test_clean_up_keeps_what_another_target_may_write_again",
    ),
    "other offsets under a batch id (requests)": Mutation(
        "takes a batch for delivered because another one has its id",
        instead(f"{REQUESTS}._is_delivered", "not token.matches(batch.digest)", "False"),
        test="tests/committers/test_request_delivery.py::test_a_batch_of_other_offsets_is_refused",
    ),
    "a recorded part is of the same rows (requests)": Mutation(
        "skips rows of a batch that was written anew, because as many of the earlier ones were delivered",
        instead(
            f"{SENDING}::ProgressRecorder.start",
            "(half.batch_id, half.digest, half.rows_id) != known",
            "half.batch_id != known[0]",
        ),
        test="tests/committers/test_request_delivery.py::"
        "test_a_position_counts_only_for_the_rows_it_was_recorded_for",
    ),
    "fence: a record of progress needs the lease": Mutation(
        "records what a process has sent whose lease another one has",
        never(f"{PROGRESS}::SqlProgress.write", "lease is not None"),
    ),
    "fence: a delivery process records under its lease": Mutation(
        "lets a process that was paused stop the one that has taken over its lease",
        instead("committers/progress.py::SupervisedProgress.write", "lease or self.lease", "None"),
        lakes=("requests",),
    ),
    "compare-and-set of the progress": Mutation(
        "overwrites the progress that another process has recorded",
        never(f"{PROGRESS}::SqlProgress.write", "found != expected"),
    ),
}
"""By guard."""
