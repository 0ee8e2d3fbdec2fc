"""The guards of the commit protocol, each with a change of the product that takes it away.

A change whose code is not found any more is an error that names it: the guard has to be thought over anew.
"""

from __future__ import annotations

from dataclasses import dataclass

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

BOTH = ("delta", "iceberg")


@dataclass(frozen=True, init=False)
class Mutation:
    """One guard taken away.

    Args:
        guard: its name
        without: what the product does then
        changes: of the source; a guard that has a second one behind it goes together with that
        lakes: the table formats whose histories can show it
        needs: what a history must have: `decoupled`, `mixed`, `concurrent_drivers`, `one_store` or
            `own_stores` of forked checkpoints, or an event
        events: the only events of these histories, and many of them; for what is too rare among all events
        first: the seed that they begin at; for what is so rare that a long search had to find it
        test: the test that must fail, in place of histories; for what is too rare in any of them
    """

    guard: str
    without: str
    changes: tuple[SourceChange, ...]
    lakes: tuple[str, ...]
    needs: frozenset[str]
    events: tuple[str, ...]
    first: int
    test: str

    def __init__(
        self,
        guard: str,
        without: str,
        *changes: SourceChange,
        lakes: tuple[str, ...] = BOTH,
        needs: tuple[str, ...] = (),
        events: tuple[str, ...] = (),
        first: int = 0,
        test: str = "",
    ) -> None:
        values = (guard, without, changes, lakes, frozenset(needs), events, first, test)
        for name, value in zip(self.__annotations__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def file(self) -> str:
        """Where the guard is."""
        return self.changes[0].file

    @property
    def is_in_store(self) -> bool:
        """The simulation has a store of its own: calls to both stores show it, not histories."""
        return self.file.startswith("committers/store/")


DECISION = "committers/decision.py"
DELTA = "committers/delta/committer.py::DeltaTableCommitter"
ICEBERG = "committers/iceberg/committer.py::IcebergTableCommitter"
EXPIRY = "committers/iceberg/expiry.py::SnapshotExpiry"
TWO_PHASE = "committers/two_phase.py::TwoPhaseCommitter"
DECOUPLED = "committers/decoupled.py::DecoupledCommitter"
PREPARATION = "committers/preparing.py::Preparation"
COMMIT_RUNNER = "committers/commit_runner.py::CommitRunner"
RECOVERY = "committers/recovery.py::Recovery"
FORKS = "committers/checkpoint_forks.py::CheckpointForks"
CLEANUP = "committers/cleanup.py::Cleanup"
DELIVERY = "committers/deliveries/deliverer.py::StreamDelivery"
REQUESTS = "committers/requests/committer.py::RequestCommitter"
SENDING = "committers/requests/delivery.py"
STORE = "committers/store/sql.py::SqlManifestStore"
STORE_PREPARATION = "committers/store/preparation.py::Preparation"
DELIVERY_QUERIES = "committers/store/delivery_queries.py"
PROGRESS = "committers/store/progress.py"
DECOUPLED_TESTS = "tests/committers/test_decoupled.py"
FANOUT_TESTS = "tests/datasource/test_fanout.py"
TWO_PHASE_TESTS = "tests/committers/test_two_phase.py"

MUTATIONS: tuple[Mutation, ...] = (
    # The table
    Mutation(
        "token check (Delta)",
        "commits without looking for the batch's token",
        instead(f"{DELTA}._prepare_attempt", "self._is_in(table, token, manifest)", "False"),
        lakes=("delta",),
    ),
    Mutation(
        "token check (Iceberg)",
        "commits without looking for the batch's token",
        never(f"{ICEBERG}.commit", "self._is_in(table.metadata, committed, manifest.batch)"),
        lakes=("iceberg",),
    ),
    Mutation(
        "same-handle check (Delta)",
        "commits on a newer version than the one whose token was checked",
        instead(
            f"{DELTA}.commit",
            "self._commit_once(attempt, manifest, content)",
            "self._commit_once(self._newest(content), manifest, content)",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "the log entry of a cached snapshot (Delta)",
        "takes the next version for free in a log that foreign writers have moved on and cleaned up",
        always("committers/delta/snapshot_cache.py::advance", "last.is_there()"),
        never("committers/delta/snapshot_cache.py::TableSnapshot.append", "not tail.is_there()"),
        lakes=("delta",),
        events=("append", "expire"),
    ),
    Mutation(
        "the log entry that a commit was based on (Delta)",
        "takes an entry for a commit although it went behind what foreign writers have cleaned up",
        never("committers/delta/snapshot_cache.py::TableSnapshot.append", "not tail.is_there()"),
        lakes=("delta",),
        events=("append", "expire"),
    ),
    Mutation(
        "compare-and-set of the branch's head (Iceberg)",
        "sends the snapshot without the requirement that the head is the one that was checked",
        without("committers/iceberg/snapshot.py::prepare_attempt", "*transaction.requirements"),
        lakes=("iceberg",),
    ),
    Mutation(
        "digest in the table's token (Delta)",
        "takes another batch of the same id for this one",
        never(f"{DELTA}._is_in", "not self._may_be(table, token, batch)"),
        lakes=("delta",),
    ),
    Mutation(
        "digest in the table's token (Iceberg)",
        "takes another batch of the same id for this one",
        never(f"{ICEBERG}._is_in", "not batch.digest.startswith(digest)"),
        lakes=("iceberg",),
    ),
    Mutation(
        "RESTORE check (Delta)",
        "trusts the token of a table that was restored",
        never("committers/delta/table.py::check_not_restored", "restore.version > committed"),
        lakes=("delta",),
    ),
    Mutation(
        "rollback check (Iceberg)",
        "trusts the token of a branch that was rolled back",
        always(
            "committers/iceberg/table.py::check_not_rolled_back",
            "_is_behind_head(metadata, address.branch, committed)",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "rollback check before an expiry (Iceberg)",
        "expires the snapshots that show that its own stream's batches were rolled back",
        without(f"{EXPIRY}._expire", "self._check(table.metadata)"),
        lakes=("iceberg",),
        test="tests/committers/test_iceberg_rollback.py::test_the_expiry_of_the_stream_keeps_what_shows_the_rollback",
    ),
    Mutation(
        "vacuum check (Delta)",
        "commits files that a vacuum has deleted since recovery checked them",
        without(f"{DELTA}._prepare_attempt", "self._check_not_vacuumed("),
        lakes=("delta",),
    ),
    Mutation(
        "vacuum check where the log was cleaned up (Delta)",
        "commits files that a vacuum has deleted if the log has no entry of it any more",
        without(f"{DELTA}._prepare_attempt", "not is_known"),
        lakes=("delta",),
        events=("append", "vacuum", "expire"),
    ),
    Mutation(
        "an unknown outcome is no failure (Iceberg)",
        "deletes an attempt's manifests although its request may still be committed",
        always("committers/iceberg/snapshot.py::Attempt.give_up", "not failed.can_commit_later"),
        lakes=("iceberg",),
    ),
    # The two-phase committer
    Mutation(
        "digest of a committed batch",
        "skips a batch id that was committed from other offsets",
        entry(f"{DECISION}::COUPLED", "RecordStatus.COMMITTED_OTHER", "_ALWAYS_SKIP"),
    ),
    Mutation(
        "digest of the token, before the write",
        "skips if the table holds the batch id, whatever its offsets",
        always(f"{DECISION}::token_position", "token.matches(batch.digest)"),
    ),
    Mutation(
        "token decides when the store knows nothing",
        "writes a batch that the store does not know, whatever the table holds",
        entry(f"{DECISION}::COUPLED", "RecordStatus.NOTHING", "(_A.WRITE,) * 5"),
    ),
    Mutation(
        "a batch behind the token is refused",
        "skips a batch behind the table's token that the store does not know",
        instead(f"{DECISION}::_BY_TOKEN", "_A.REFUSE_BEHIND", "_A.SKIP"),
    ),
    Mutation(
        "other offsets supersede a pending batch",
        "commits the old manifest under a batch id that has other offsets now",
        never(f"{RECOVERY}._recovery_of", "replay.digest != batch.digest"),
    ),
    Mutation(
        "existence check",
        "recovers a manifest whose files are gone",
        never(f"{RECOVERY}._recovery_of", "missing"),
    ),
    Mutation(
        "recovery leaves batches after the replayed one",
        "commits pending batches of a rewound checkpoint before their replay",
        without(
            f"{RECOVERY}.recover_each", "if replay is not None and record.batch.batch_id > replay.batch_id:"
        ),
    ),
    Mutation(
        "first prepared wins, in the committer",
        "commits its own manifest although another one holds for the batch",
        always(f"{TWO_PHASE}.commit", "prepared.is_ours"),
    ),
    Mutation(
        "digest of an earlier manifest",
        "commits an earlier run's manifest of the batch, from whatever offsets",
        never(f"{PREPARATION}.prepare", "prepared.record.batch.digest != batch.digest"),
        needs=("copy_checkpoint", "decoupled", "one_store"),  # coupled, the manifest is read again
    ),
    Mutation(
        "abort rule: only what never reached its commit",
        "deletes the files of a batch whose commit has failed",
        without("datasource/committing.py::abort_batch", "None in messages"),
    ),
    Mutation(
        "an unknown outcome of prepare deletes nothing",
        "deletes the files of a batch although its manifest may have been stored",
        instead(f"{PREPARATION}.put", "(FencedError, RetryableError)", "Exception"),
    ),
    Mutation(
        "mark only what is committed",
        "marks a batch COMMITTED whatever became of its commit",
        before(
            f"{COMMIT_RUNNER}.commit_and_mark", "try:", "self._store.finish(batch, ManifestState.COMMITTED)"
        ),
    ),
    Mutation(
        "a batch aborted during its commit is no success",
        "goes on although another run has aborted the batch",
        never(f"{COMMIT_RUNNER}.commit_and_mark", "self.state(batch) is not ManifestState.COMMITTED"),
    ),
    Mutation(
        "what can never be committed is aborted at once",
        "leaves a manifest pending that the table has refused for its offsets",
        without(f"{COMMIT_RUNNER}.commit_and_mark", "self._store.finish("),
        before(f"{DELTA}._may_be", "end = committed_version(", "return True"),
        before("committers/iceberg/table.py::digest_of", "for snapshot in line_of(", "return None"),
    ),
    Mutation(
        "an earlier manifest whose files are gone gives way",
        "commits the manifest of a run that was aborted before its prepare arrived",
        never(f"{PREPARATION}.prepare", "self.is_void(prepared.record)"),
        lakes=("iceberg",),  # in Delta the vacuum check is behind it
    ),
    Mutation(
        "the table is read before the store",
        "takes a batch that a concurrent driver has just committed for one with other offsets",
        earlier(f"{TWO_PHASE}.begin", "record =", than="token = self._table.token("),
        needs=("concurrent_drivers",),
    ),
    # The store
    Mutation(
        "fence: prepare needs the claim",
        "lets a run prepare that was taken over",
        without(f"{STORE_PREPARATION}.prepare", "current.run_id != run_id"),
    ),
    Mutation(
        "first prepared wins",
        "replaces a manifest that is PREPARED",
        instead(
            "committers/store/preparation.py::_gives_way",
            "return record.state is ManifestState.ABORTED",
            "return record.state is not ManifestState.COMMITTED",
        ),
    ),
    Mutation(
        "what is skipped while it is written stays skipped",
        "prepares the batch again, which the token of a later one then marks as committed",
        never(f"{STORE_PREPARATION}.prepare", "record.is_skipped and record.batch == batch"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_that_was_skipped_while_a_slow_driver_wrote_it_is_not_prepared",
    ),
    Mutation(
        "compare-and-set of the mark",
        "changes the state of a batch whatever it is",
        without(
            "committers/store/queries.py::_UPDATE_PREPARED",
            "manifests.c.state == ManifestState.PREPARED.value",
        ),
        instead(
            "committers/store/queries.py::_UPDATE_PREPARED",
            "manifests.c.digest == sa.bindparam('given_digest')",
            "sa.bindparam('given_digest') != ''",
        ),
    ),
    # Clean-up
    Mutation(
        "clean-up: settled",
        "deletes files of batches that may still be committed",
        without("committers/cleanup.py::classify", "if name.batch_id > settled[name.query_id]:"),
        without(f"{CLEANUP}._still_unneeded", "name.batch_id <= settled.get(name.query_id, -1)"),
    ),
    Mutation(
        "clean-up: named by the table",
        "deletes files that a version of the table names",
        without(f"{CLEANUP}.find", "for names in self._table.names("),
        without(f"{CLEANUP}._still_unneeded", "for names in self._table.names("),
        never(
            f"{CLEANUP}._names_in_manifests",
            "any((verdict is FileStatus.UNNEEDED for _, verdict in files.values()))",
        ),
        never(f"{CLEANUP}._manifests_of", "query_id == stream.query_id"),
    ),
    Mutation(
        "clean-up: ours",
        "deletes files of foreign writers",
        before(
            "committers/cleanup.py::classify",
            "if name is None or",
            "if name is None:\n    return FileStatus.UNNEEDED",
        ),
        without("committers/cleanup.py::classify", "name is None"),
        without(f"{CLEANUP}.find", "for names in self._table.names("),
        instead(
            f"{CLEANUP}._still_unneeded",
            "name is not None and name.batch_id <= settled.get(name.query_id, -1)",
            "name is None or name.batch_id <= settled.get(name.query_id, -1)",
        ),
        without(f"{CLEANUP}._still_unneeded", "for names in self._table.names("),
    ),
    Mutation(
        "clean-up: grace period",
        "deletes files however young they are",
        always("committers/cleanup.py::classify", "file.modified_at < written_before"),
    ),
    # Snapshot expiry
    Mutation(
        "expiry: what stays is needed",
        "deletes files that snapshots which stay need as well",
        instead(
            "committers/iceberg/reachability.py::expired_files",
            "kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in expired_ids]",
            "kept: list[Snapshot] = []",
        ),
        before("committers/iceberg/reachability.py::needed_again", "needed =", "return set()"),
        lakes=("iceberg",),
    ),
    Mutation(
        "expiry: files go after the snapshots",
        "deletes the files of a plan although its snapshots are still in the table",
        always(f"{EXPIRY}._due", "expiry.expired_at is not None"),
        instead(
            f"{EXPIRY}._delete",
            "needed = needed_again(table.io, table.metadata, files)",
            "needed: set[str] = set()",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "expiry: grace period",
        "deletes files of snapshots that have just expired",
        instead(f"{EXPIRY}._due", "now - timedelta(seconds=self._policy.grace_s)", "now"),
        lakes=("iceberg",),
    ),
    # Deliveries
    Mutation(
        "recovery ends at the first batch that stays pending",
        "goes on with the batches after it",
        never(f"{RECOVERY}.recover_each", "recovered.state is not ManifestState.COMMITTED"),
    ),
    Mutation(
        "overlap check",
        "commits a delivery to a table that holds a part of it",
        never(
            "committers/deliveries/contract.py::check_none_committed",
            "first <= token.batch_id < manifest.batch.batch_id",
        ),
    ),
    Mutation(
        "settle",
        "delivers batches again that the table's token has passed",
        without(f"{DELIVERY}._round", "self._settle("),
    ),
    Mutation(
        "files of a delivery are checked before it is prepared",
        "delivers batches whose files are gone",
        without(f"{DELIVERY}._round", "self._check_files("),
        lakes=("iceberg",),  # in Delta the vacuum check is behind it
    ),
    Mutation(
        "a rewritten delivery whose files are gone is abandoned",
        "commits it anyway",
        never(f"{DELIVERY}._commit_unfinished", "missing"),
    ),
    Mutation(
        "deliverAfterCheckpoint",
        "delivers batches that Spark's commits log does not have",
        instead(
            f"{DELIVERY}._deliverable",
            "[record for record in records if record.batch.batch_id <= last]",
            "records",
        ),
    ),
    Mutation(
        "a failed overlap check abandons the delivery",
        "tries a delivery again of which another process has committed a part",
        without(f"{DELIVERY}._commit_and_finish", "self._deliveries.abandon("),
    ),
    Mutation(
        "the batches before are known, or delivered",
        "goes on although batches were lost with the store",
        never(f"{DECOUPLED}._check_nothing_lost", "last < batch.batch_id - 1"),
    ),
    Mutation(
        "digest of a prepared batch (decoupled)",
        "skips a batch that is prepared from other offsets",
        entry(f"{DECISION}::DECOUPLED", "RecordStatus.PREPARED_OTHER", "_ALWAYS_SKIP"),
        needs=("decoupled", "rewind_checkpoint"),
    ),
    Mutation(
        "the batch before is the same",
        "writes a batch behind one that the store has from other offsets",
        never(f"{FORKS}.check_before", "digest != before.batch.digest"),
    ),
    Mutation(
        "an aborted batch before is the same",
        "writes a batch behind one that a fork had put in its place and an operator has aborted",
        before(f"{FORKS}.check_before", "digest, what =", "if before.is_dropped:\n    return before"),
        needs=("decoupled", "one_store"),
        events=("abort", "copy_checkpoint", "reset_checkpoint", "deliver"),
        first=746_000,
    ),
    Mutation(
        "an operator aborts what was shown",
        "aborts whatever is prepared by then",
        without("cli/admin.py::abort", "expected=expected"),
        needs=("decoupled", "one_store"),
        events=("abort", "copy_checkpoint", "reset_checkpoint", "deliver"),
    ),
    Mutation(
        "the batch before waits for no replay",
        "writes a batch behind one that was aborted and never written again",
        never(f"{FORKS}.check_before", "before.awaits_replay"),
        needs=("copy_checkpoint", "decoupled"),
    ),
    Mutation(
        "the batch before is still the same when one is prepared",
        "prepares a batch behind one that a fork of the checkpoint has replaced meanwhile",
        instead(
            f"{DECOUPLED}.batch_before",
            "lambda batch_id: digest_before if batch_id == last else None",
            "lambda _: None",
        ),
        without(f"{DECOUPLED}.batch_before", "is_delivered=True"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_is_not_prepared_behind_the_one_of_a_copy",
    ),
    Mutation(
        "what waits behind a skipped batch is aborted with it (decoupled)",
        "aborts only behind a prepared one, when other rows come in its place",
        instead(
            f"{DECOUPLED}.begin",
            "action is Action.SUPERSEDE and record is not None",
            "action is Action.SUPERSEDE and record is not None and (record.state is ManifestState.PREPARED)",
        ),
        test=f"{DECOUPLED_TESTS}::test_a_later_batch_is_never_left_waiting_behind_one_that_is_written_again",
    ),
    Mutation(
        "a refused fork aborts nothing",
        "aborts the other fork's batch before it is refused",
        before(
            f"{DECOUPLED}.check",
            "if action is not Action.SKIP or is_pending",
            "if action is Action.SUPERSEDE and record is not None:\n    self.preparation.supersede(record)",
        ),
        earlier(
            f"{TWO_PHASE}.begin",
            "if action is Action.SUPERSEDE and record is not None:",
            than="self._forks.check_before(",
        ),
        needs=("decoupled", "one_store", "concurrent_drivers"),
        events=("skip", "copy_checkpoint"),
    ),
    Mutation(
        "a skipped batch hides no gap",
        "checks no further than the batch before",
        without(f"{FORKS}.check_before", "if (gap := self.gap_before("),
        test=f"{DECOUPLED_TESTS}::test_a_skipped_batch_hides_none_that_was_given_up",
    ),
    Mutation(
        "the manifest of other rows is not taken",
        "commits whatever the store has under the batch id by now",
        without("committers/commit_runner.py::stored_manifest", "manifest.batch != batch"),
        test=f"{TWO_PHASE_TESTS}::test_the_manifest_of_other_rows_is_not_taken_for_an_earlier_one",
    ),
    Mutation(
        "a batch whose files are gone stays prepared until its replay is",
        "aborts it, though a decoupled driver may have gone on behind it",
        instead(
            f"{RECOVERY}._left_for_replay",
            "Recovered(record, ManifestState.PREPARED, f'the replay writes it again: {why}')",
            "self._finish(record, ManifestState.ABORTED, f'the replay writes it again: {why}')",
        ),
        test=f"{DECOUPLED_TESTS}::test_a_coupled_replay_whose_files_are_gone_leaves_what_a_twin_has_logged",
    ),
    Mutation(
        "a batch that the table refuses gives way to its replay",
        "tries the earlier manifest again and again",
        never(
            f"{TWO_PHASE}._commit_earlier",
            "self._preparation.put(manifest, committables, replacing=earlier).is_ours",
        ),
        events=("roll_back",),
    ),
    Mutation(
        "a delivery goes by the store alone",
        "prepares a batch behind one that the store has aborted, if the table has it",
        never(f"{FORKS}.check_before", "not before.is_dropped"),
        test=f"{DECOUPLED_TESTS}::test_a_batch_is_not_prepared_behind_one_that_the_store_has_given_up_though_the_table_has_it",
    ),
    Mutation(
        "what was skipped behind an aborted batch waits for its replay",
        "keeps the operator's skip for rows that followed other rows",
        without(
            "committers/store/queries.py::abort_from",
            "connection.execute(sa.update(manifests).where(*are_skipped).values(",
        ),
    ),
    Mutation(
        "an operator skips what was shown",
        "skips whatever rows have come under the batch id meanwhile",
        never(
            "committers/store/operator_actions.py::SqlOperatorActions.skip", "expected.digest != row.digest"
        ),
    ),
    Mutation(
        "a start stops at batches behind one that waits for its replay",
        "writes the next batch, whose token says that they are committed",
        never(f"{RECOVERY}.recover_each", "record.batch.batch_id < replay.batch_id"),
        test=f"{DECOUPLED_TESTS}::test_a_coupled_query_does_not_go_on_over_a_batch_that_waits_for_its_replay",
    ),
    Mutation(
        "recovery stops behind a batch that waits for its replay",
        "commits what was prepared behind it",
        instead(f"{RECOVERY}.recover_each", "self._forks.gap_before(record.batch)", "None"),
        needs=("mixed", "own_stores"),
        events=("copy_checkpoint", "recover"),
    ),
    Mutation(
        "delivered meanwhile",
        "calls a batch lost whose files a delivery has just rewritten",
        never(f"{RECOVERY}._recovery_of", "self._commit_runner.state(batch) is ManifestState.COMMITTED"),
        needs=("mixed",),
        events=("deliver",),
    ),
    Mutation(
        "what an operator has skipped is not written again",
        "aborts, for its replay, what was prepared behind it",
        entry(f"{DECISION}::DECOUPLED", "RecordStatus.SKIPPED", "_SUPERSEDE"),
        needs=("decoupled", "skip", "concurrent_drivers"),
    ),
    Mutation(
        "only a replay aborts a batch that is in the table from other offsets",
        "aborts it although Spark does not run it again",
        without(f"{RECOVERY}._recovery_of", "if not is_replayed:\n    raise refused("),
        needs=("copy_checkpoint", "recover"),
    ),
    Mutation(
        "the table's last batch is this checkpoint's",
        "writes a batch behind one that a fork has committed, if the store was lost",
        without(f"{FORKS}.check_before", "self._check_last_in_table("),
        needs=("decoupled", "own_stores"),
        events=("copy_checkpoint", "lose_store"),
    ),
    Mutation(
        "a batch is committed only behind what its store knows",
        "commits behind a batch that a fork of the checkpoint has committed meanwhile",
        without(f"{COMMIT_RUNNER}._check_attempt", "self._forks.check_token("),
        lakes=("delta",),
        needs=("own_stores",),
        events=("abort", "copy_checkpoint", "skip"),
        first=916_588,
    ),
    Mutation(
        "the token is of this very stream",
        "settles batches by the token of a fork of the checkpoint",
        without(f"{DELIVERY}._settle", "self._check_token_is_ours("),
        lakes=("iceberg",),
        needs=("decoupled", "own_stores"),
        events=("copy_checkpoint", "reset_checkpoint", "expire", "deliver"),
        first=11_600,
    ),
    Mutation(
        "sources: named by the table",
        "deletes files that a rewritten delivery has replaced, although the table names them",
        instead("delivery/sources.py::_remove", "table.names()", "()"),
    ),
    Mutation(
        "sources: the delivery's own files stay",
        "deletes files that a rewritten delivery has kept, and those that it has made",
        instead(
            "delivery/sources.py::_replaced",
            "set(_paths(store.deliveries.sources(delivery))) - kept",
            "set(_paths(store.deliveries.sources(delivery))) | kept",
        ),
        instead("delivery/sources.py::_remove", "table.names()", "()"),
    ),
    # Deliveries in the store
    Mutation(
        "fence: a delivery needs the lease",
        "lets a process prepare a delivery that was taken over",
        without(f"{DELIVERY_QUERIES}::check_lease", "(row.holder, row.fence) == (lease.holder, lease.fence)"),
        without(f"{DELIVERY_QUERIES}::check_lease", "row.expires_at"),
    ),
    Mutation(
        "a delivery leaves no batch out",
        "takes a delivery of batches that are not pending any more, or omits one that is",
        never(f"{DELIVERY_QUERIES}::check_deliverable", "found != expected"),
    ),
    Mutation(
        "one unfinished delivery at most",
        "prepares a second one",
        instead(
            f"{DELIVERY_QUERIES}::check_deliverable",
            "[row for row in rows if row.delivery_id is not None]",
            "list[sa.Row[tuple[object, ...]]]()",
        ),
    ),
    Mutation(
        "a batch that is being delivered is not aborted",
        "aborts it although the delivery may be committed",
        instead(f"{STORE}.finish", "state is ManifestState.ABORTED", "False"),
    ),
    Mutation(
        "a batch that is being delivered is not skipped",
        "skips it although the delivery may be committed",
        without(
            "committers/store/operator_actions.py::SqlOperatorActions.skip", "if row.delivery_id is not None:"
        ),
    ),
    Mutation(
        "compare-and-set of a delivery",
        "finishes a delivery that was abandoned, or another one of the same number",
        without(f"{DELIVERY_QUERIES}::end_delivery", "is_prepared"),
        without(f"{DELIVERY_QUERIES}::end_delivery", "is_same"),
    ),
    Mutation(
        "a follower needs the batch before",
        "prepares a batch behind one that was lost with the store, or aborted, since it was planned",
        never(f"{STORE_PREPARATION}.prepare", "request.follows is not None"),
    ),
    Mutation(
        "other rows do not replace those that a later batch follows",
        "prepares them in place of an aborted batch, whatever was prepared behind it since",
        never(f"{STORE_PREPARATION}.prepare", "record.batch != batch"),
    ),
    Mutation(
        "compare-and-set of an abort",
        "aborts what a concurrent driver has prepared since the record was read",
        instead(
            "committers/store/sql.py::_is_still",
            "row is not None and queries.to_record(expected.batch.stream, row) == expected",
            "True",
        ),
    ),
    Mutation(
        "delivery waits for a replay",
        "delivers batches behind one that was aborted for its replay",
        instead(f"{DELIVERY_QUERIES}::find_gap", "gap: int | None = connection.scalar(query)", "gap = None"),
    ),
    Mutation(
        "clean-up: named by an unfinished delivery",
        "deletes the rewritten files of a delivery that is not finished",
        never("committers/store/contents.py::in_state", "state is not ManifestState.ABORTED"),
        without("committers/cleanup.py::classify", "if name.batch_id > settled[name.query_id]:"),
        without(f"{CLEANUP}._still_unneeded", "name.batch_id <= settled.get(name.query_id, -1)"),
    ),
    # The row log
    Mutation(
        "what is delivered is not sent again (requests)",
        "sends batches that the progress in the store says are delivered",
        never(f"{REQUESTS}.commit", "self._is_delivered(manifest, seen.token)"),
        instead(f"{REQUESTS}._undelivered", "batch.batch.batch_id > last", "True"),
        lakes=("requests",),
    ),
    Mutation(
        "only what is acknowledged is recorded (requests)",
        "records the row after the last acknowledged one, too",
        instead(f"{SENDING}::deliver.acknowledged", "up_to + 1", "up_to + 2"),
        lakes=("requests",),
    ),
    Mutation(
        "the token follows the last row of its batch (requests)",
        "records a batch as delivered when one row is missing",
        instead(
            f"{SENDING}::ProgressRecorder.record",
            "bisect_right(self._ends, rows)",
            "bisect_right(self._ends, rows + 1)",
        ),
        lakes=("requests",),
    ),
    Mutation(
        "a delivery ends when all is acknowledged (requests)",
        "records the end while entries are in flight",
        without(f"{SENDING}::deliver", "writer.flush()"),
        lakes=("requests",),
    ),
    Mutation(
        "a row keeps its id when its delivery goes on (requests)",
        "counts the rows of a partition from where the delivery goes on",
        instead("committers/row_log/log.py::RowLog._read_file", "row + first", "row + first - skipped"),
        lakes=("requests",),
    ),
    Mutation(
        "the row log is kept until the progress is recorded",
        "deletes the files of a batch before its rows are sent",
        before(f"{REQUESTS}.commit", "if batches is None", "self._delete(stream, batches)"),
        lakes=("requests",),
    ),
    Mutation(
        "the row log is kept for targets that need it",
        "deletes the files of a batch that another target of the query has not delivered",
        instead(f"{REQUESTS}._delete", "one.batch.batch_id not in needed", "True"),
        test=f"{FANOUT_TESTS}::test_a_target_that_is_down_holds_up_nobody",
    ),
    Mutation(
        "the row log is not kept for what a target has delivered",
        "keeps the files of a batch whose record is behind the progress",
        without(f"{PROGRESS}::SqlProgress.needed_by_others", "_IS_AHEAD"),
        test=f"{FANOUT_TESTS}::test_a_target_whose_delivery_died_after_its_last_record_keeps_no_files",
    ),
    Mutation(
        "the row log is not kept for a skipped batch",
        "keeps the files of a batch that an operator has skipped for another target",
        without(f"{PROGRESS}::SqlProgress.needed_by_others", "IS_PREPARED"),
        test=f"{FANOUT_TESTS}::test_operators_act_on_one_target",
    ),
    Mutation(
        "only targets with the same row log share it",
        "keeps files for a target that reads another row log",
        instead(f"{PROGRESS}::_sharing", "row_log_in(row.settings) == location", "True"),
        test=f"{FANOUT_TESTS}::test_a_target_with_a_row_log_of_its_own_does_not_share_it",
    ),
    Mutation(
        "clean-up of the row log: needed by another target",
        "deletes what the target itself has delivered",
        instead(
            "committers/row_log/cleanup.py::CleanableRowLogs._token",
            "self._progress.settled_by_others(stream, log.location)",
            "None",
        ),
        test=f"{FANOUT_TESTS}::test_clean_up_keeps_what_another_target_needs",
    ),
    Mutation(
        "clean-up of the row log: a new target",
        "deletes files that a target without any batch may still prepare",
        instead(f"{PROGRESS}::_settled", "-1", "None"),
        test=f"{FANOUT_TESTS}::test_clean_up_waits_for_a_new_target",
    ),
    Mutation(
        "clean-up of the row log: a removed target",
        "waits for batches that a target which was removed never gets",
        instead(f"{PROGRESS}::SqlProgress.settled_by_others", "other.table_uri in targets", "True"),
        test=f"{FANOUT_TESTS}::test_clean_up_does_not_wait_for_a_target_that_was_removed",
    ),
    Mutation(
        "clean-up of the row log: a batch that is written again",
        "deletes the files of a batch that was aborted in another target for its replay",
        instead(
            f"{PROGRESS}::_settled",
            "sa.or_(IS_PREPARED, may_return) if is_target else IS_PREPARED",
            "IS_PREPARED",
        ),
        test=f"{FANOUT_TESTS}::test_clean_up_keeps_what_another_target_may_write_again",
    ),
    Mutation(
        "other offsets under a batch id (requests)",
        "takes a batch for delivered because another one has its id",
        instead(f"{REQUESTS}._is_delivered", "not token.matches(batch.digest)", "False"),
        test="tests/committers/test_request_delivery.py::test_a_batch_of_other_offsets_is_refused",
    ),
    Mutation(
        "a recorded part is of the same rows (requests)",
        "skips rows of a batch that was written anew, because as many of the earlier ones were delivered",
        instead(
            f"{SENDING}::ProgressRecorder.start",
            "(half.batch_id, half.digest, half.rows_id) != known",
            "half.batch_id != known[0]",
        ),
        test="tests/committers/test_request_delivery.py::"
        "test_a_position_counts_only_for_the_rows_it_was_recorded_for",
    ),
    Mutation(
        "compare-and-set of the progress",
        "overwrites the progress that another process has recorded",
        never("committers/store/progress.py::SqlProgress.write", "found != expected"),
    ),
)
