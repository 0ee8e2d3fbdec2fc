"""The guards of the commit protocol, each with a change of the source that takes it away.

A mutation names its lines literally: when they change, it fails to apply, and has to be thought over anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BOTH = ("delta", "iceberg")


@dataclass(frozen=True)
class Edit:
    """Lines of the source, and what stands there instead. Both begin with a newline, for the eye."""

    old: str
    new: str
    file: str = ""
    """Where they are, if not in the file of the mutation."""


class Mutation:
    """One guard removed.

    Args:
        without: what the product does then
        file: where the guard is; one that has a second one behind it goes with that, wherever it is
        lakes: where it is looked for
        needs: what a history must have for the guard to matter: `decoupled`, `mixed`, `twins`, `one_store` or
            `own_stores` for copies of a checkpoint, or what others do in it; only such histories are played
        others: what others do in them, often, and nothing else; for what is too rare among all that they do
        first: the seed that they begin at; for what is so rare that a long hunt had to find it
        test: the test that must fail, in place of histories; for what is too rare in any of them
    """

    def __init__(
        self,
        guard: str,
        without: str,
        file: str,
        *edits: Edit,
        lakes: tuple[str, ...] = BOTH,
        needs: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
        first: int = 0,
        test: str = "",
    ) -> None:
        self.guard = guard
        self.without = without
        self.file = file
        self.lakes = lakes
        self.needs = frozenset(needs)
        self.others = others
        self.first = first
        self.test = test
        self._edits = edits

    @property
    def is_in_store(self) -> bool:
        """The simulation has a store of its own: calls to both tell, not histories."""
        return self.file.startswith("committers/store/")

    @property
    def files(self) -> Mapping[str, str]:
        """By module: which files it changes."""
        files = dict.fromkeys([self.file, *(edit.file for edit in self._edits if edit.file)])
        return {"penstock." + file.removesuffix(".py").replace("/", "."): file for file in files}

    def apply(self, file: str, source: str) -> str:
        """The source of one of the files without the guard.

        Raises:
            ValueError: these lines are not there, or not once.
        """
        for edit in self._edits:
            if (edit.file or self.file) != file:
                continue
            old, new = edit.old.removeprefix("\n"), edit.new.removeprefix("\n")
            if (count := source.count(old)) != 1:
                raise ValueError(f"{self.guard}: {file} has these lines {count} times:\n{old}")
            source = source.replace(old, new)
        return source


DECISION = "committers/decision.py"
TWO_PHASE = "committers/two_phase.py"
PREPARING = "committers/preparing.py"
LANDING = "committers/commit_runner.py"
RECOVERY = "committers/recovery.py"
COPIES = "committers/checkpoint_forks.py"
DELTA = "committers/delta/committer.py"
VIEW = "committers/delta/snapshot_cache.py"
ICEBERG = "committers/iceberg/committer.py"
ICEBERG_TABLE = "committers/iceberg/table.py"
EXPIRY = "committers/iceberg/expiry.py"
SNAPSHOT = "committers/iceberg/snapshot.py"
REACHABILITY = "committers/iceberg/reachability.py"
CLEANUP = "committers/cleanup.py"
DECOUPLED = "committers/decoupled.py"
DECOUPLED_TESTS = "tests/committers/test_decoupled.py::"
TWO_PHASE_TESTS = "tests/committers/test_two_phase.py::"
DELIVERER = "committers/deliveries/deliverer.py"
SOURCES = "delivery/sources.py"
STORE = "committers/store/sql.py"
QUERIES = "committers/store/queries.py"
DELIVERY_QUERIES = "committers/store/delivery_queries.py"

MUTATIONS: tuple[Mutation, ...] = (
    # The table
    Mutation(
        "token check (Delta)",
        "commits without looking for the batch's token",
        DELTA,
        Edit(
            """
        if token is not None and self._is_in(table, token, manifest):
            return AlreadyCommitted(committed if token.batch_id == batch.batch_id else None)
""",
            """
        if token is not None and False:
            return AlreadyCommitted(committed if token.batch_id == batch.batch_id else None)
""",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "token check (Iceberg)",
        "commits without looking for the batch's token",
        ICEBERG,
        Edit(
            """
            if self._is_in(table.metadata, committed, manifest.batch):
""",
            """
            if False:
""",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "same-handle check (Delta)",
        "commits on a newer version than the one whose token was looked at",
        DELTA,
        Edit(
            """
        return self._commit_once(attempt, manifest, content)
""",
            """
        return self._commit_once(self._newest(content), manifest, content)
""",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "the log entry of a kept view (Delta)",
        "takes the next version for free in a log that others have moved on and cleaned up",
        VIEW,
        Edit(
            """
    return snapshot.with_tail(replace(last, read_at_s=now_s)) if last.is_there() else None
""",
            """
    return snapshot.with_tail(replace(last, read_at_s=now_s))
""",
        ),
        Edit(
            """
        if not tail.is_there():
""",
            """
        if False:
""",
        ),
        lakes=("delta",),
        others=("append", "expire"),
    ),
    Mutation(
        "the log entry that a commit was based on (Delta)",
        "takes an entry for a commit that went behind what others have cleaned up",
        VIEW,
        Edit(
            """
        if not tail.is_there():
""",
            """
        if False:
""",
        ),
        lakes=("delta",),
        others=("append", "expire"),
    ),
    Mutation(
        "compare-and-set of the branch's head (Iceberg)",
        "sends the snapshot without the requirement that the head is the one looked at",
        SNAPSHOT,
        Edit(
            """
        *transaction.requirements,
""",
            "",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "digest in the table's token (Delta)",
        "takes another batch of the same id for this one",
        DELTA,
        Edit(
            """
        if not self._may_be(table, token, batch):
""",
            """
        if False:
""",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "digest in the table's token (Iceberg)",
        "takes another batch of the same id for this one",
        ICEBERG,
        Edit(
            """
        if digest is not None and not batch.digest.startswith(digest):
""",
            """
        if False:
""",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "RESTORE check (Delta)",
        "believes the token of a table that was restored",
        "committers/delta/table.py",
        Edit(
            """
        if restore.version > committed and (target is None or target < committed):
""",
            """
        if False:
""",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "rollback check (Iceberg)",
        "believes the token of a branch that was rolled back",
        ICEBERG_TABLE,
        Edit(
            """
    if committed is None or _is_behind_head(metadata, address.branch, committed):
""",
            """
    if True:
""",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "vacuum check (Delta)",
        "commits files that a vacuum has deleted since recovery looked",
        DELTA,
        Edit(
            """
            self._check_not_vacuumed(manifest)
""",
            """
            pass
""",
        ),
        lakes=("delta",),
    ),
    Mutation(
        "vacuum check where the log was cleaned up (Delta)",
        "commits files that a vacuum has deleted of which no entry of the log tells any more",
        DELTA,
        Edit(
            """
        if not is_known or any(commit.is_vacuum for commit in commits):
""",
            """
        if any(commit.is_vacuum for commit in commits):
""",
        ),
        lakes=("delta",),
        others=("append", "vacuum", "expire"),
    ),
    Mutation(
        "unknown end is no failure (Iceberg)",
        "deletes an attempt's manifests although its request may still land",
        SNAPSHOT,
        Edit(
            """
        if not failed.can_commit_later:
            self.discard()
        return failed.not_found()
""",
            """
        self.discard()
        return failed.not_found()
""",
        ),
        lakes=("iceberg",),
    ),
    # The two-phase committer
    Mutation(
        "digest of a committed batch",
        "skips a batch id that was committed from other offsets",
        DECISION,
        Edit(
            """
    RecordStatus.COMMITTED_OTHER: (_A.REFUSE_COMMITTED,) * 5,
""",
            """
    RecordStatus.COMMITTED_OTHER: _ALWAYS_SKIP,
""",
        ),
    ),
    Mutation(
        "digest of the token, before the write",
        "skips when the table holds the batch id from whatever offsets",
        DECISION,
        Edit(
            """
    return TokenPosition.SAME if token.matches(batch.digest) else TokenPosition.OTHER
""",
            """
    return TokenPosition.SAME
""",
        ),
    ),
    Mutation(
        "token decides when the store knows nothing",
        "writes a batch that the store has not seen, whatever the table holds",
        DECISION,
        Edit(
            """
    RecordStatus.NOTHING: _BY_TOKEN,
""",
            """
    RecordStatus.NOTHING: (_A.WRITE,) * 5,
""",
        ),
    ),
    Mutation(
        "a batch behind the token is refused",
        "skips a batch behind the table's token that the store does not know",
        DECISION,
        Edit(
            """
_BY_TOKEN = (_A.READ_TOKEN, _A.WRITE, _A.SKIP, _A.REFUSE_IN_TABLE, _A.REFUSE_BEHIND)
""",
            """
_BY_TOKEN = (_A.READ_TOKEN, _A.WRITE, _A.SKIP, _A.REFUSE_IN_TABLE, _A.SKIP)
""",
        ),
    ),
    Mutation(
        "other offsets supersede a pending batch",
        "commits the old manifest under a batch id that has other offsets now",
        RECOVERY,
        Edit(
            """
        if is_replayed and replay is not None and replay.digest != batch.digest:
""",
            """
        if False:
""",
        ),
    ),
    Mutation(
        "existence check",
        "recovers a manifest whose files are gone",
        RECOVERY,
        Edit(
            """
        if missing:
            reason = f"{len(missing)} of {record.files} files are gone, first {missing[0]}"
""",
            """
        if False:
            reason = f"{len(missing)} of {record.files} files are gone, first {missing[0]}"
""",
        ),
    ),
    Mutation(
        "recovery leaves batches after the replayed one",
        "commits pending batches of a rewound checkpoint before their replay",
        RECOVERY,
        Edit(
            """
            if replay is not None and record.batch.batch_id > replay.batch_id:
                return
""",
            "",
        ),
    ),
    Mutation(
        "first prepared wins, in the committer",
        "commits its own manifest although another one holds for the batch",
        TWO_PHASE,
        Edit(
            """
        if prepared.is_ours:
            return self._commit_runner.commit_and_mark(manifest)
""",
            """
        if True:
            return self._commit_runner.commit_and_mark(manifest)
""",
        ),
    ),
    Mutation(
        "digest of an earlier manifest",
        "commits an earlier run's manifest of the batch, from whatever offsets",
        PREPARING,
        Edit(
            """
        if not prepared.is_ours and prepared.record.batch.digest != batch.digest:
""",
            """
        if False:
""",
        ),
        needs=("decoupled", "copy_checkpoint", "one_store"),  # coupled, the manifest is looked at again
    ),
    Mutation(
        "abort rule: only what never came to its commit",
        "deletes the files of a batch whose commit has failed",
        "datasource/committing.py",
        Edit(
            """
    if payloads and None in messages:
""",
            """
    if payloads:
""",
        ),
    ),
    Mutation(
        "an unknown end of prepare deletes nothing",
        "deletes the files of a batch although its manifest may have been written down",
        PREPARING,
        Edit(
            """
        except (FencedError, RetryableError):
""",
            """
        except Exception:
""",
        ),
    ),
    Mutation(
        "mark only what has landed",
        "marks a batch COMMITTED whatever the table said",
        LANDING,
        Edit(
            """
        batch = manifest.batch
        try:
""",
            """
        batch = manifest.batch
        self._store.finish(batch, ManifestState.COMMITTED)
        try:
""",
        ),
    ),
    Mutation(
        "a batch given up while it landed is no success",
        "goes on although another run has given the batch up",
        LANDING,
        Edit(
            """
        if not marked and self.state(batch) is not ManifestState.COMMITTED:
""",
            """
        if False:
""",
        ),
    ),
    Mutation(
        "what can never land is given up at once",
        "leaves a manifest pending that the table has refused for its offsets",
        LANDING,
        Edit(
            """
            self._store.finish(batch, ManifestState.ABORTED, reason=str(error))
            raise
""",
            """
            raise
""",
        ),
        Edit(
            """
        end = committed_version(table, batch.stream.query_id) or table.version()
""",
            """
        return True
        end = committed_version(table, batch.stream.query_id) or table.version()
""",
            DELTA,
        ),
        Edit(
            """
    if committed.batch_id == batch.batch_id:
        return committed.digest
    for snapshot in line_of(metadata, branch):
""",
            """
    if committed.batch_id == batch.batch_id:
        return committed.digest
    return None
    for snapshot in line_of(metadata, branch):
""",
            ICEBERG_TABLE,
        ),
    ),
    Mutation(
        "an earlier manifest whose files are gone gives way",
        "commits the manifest of a run that was aborted before its prepare arrived",
        PREPARING,
        Edit(
            """
        if is_same and not prepared.is_ours and self._is_void(prepared.record):
""",
            """
        if False:
""",
        ),
        lakes=("iceberg",),  # in Delta the vacuum check stands behind it
    ),
    Mutation(
        "the table is looked at before the store",
        "takes a batch that a twin has just landed for one with other offsets",
        TWO_PHASE,
        Edit(
            """
        token = self._table.token(batch.stream.query_id)
        record = self._store.record(batch.stream, batch.batch_id)
        action = decide(record, token_position(token, batch), batch)
""",
            """
        record = self._store.record(batch.stream, batch.batch_id)
        token = self._table.token(batch.stream.query_id)
        action = decide(record, token_position(token, batch), batch)
""",
        ),
        needs=("twins",),
    ),
    # The store
    Mutation(
        "fence: prepare needs the claim",
        "lets a run prepare that was taken over",
        STORE,
        Edit(
            """
            if current is None or current.run_id != run_id:
                raise _fenced(batch.stream, run_id, current)
""",
            """
            if current is None:
                raise _fenced(batch.stream, run_id, current)
""",
        ),
    ),
    Mutation(
        "first prepared wins",
        "replaces a manifest that is PREPARED",
        STORE,
        Edit(
            """
        return record.state is ManifestState.ABORTED
""",
            """
        return record.state is not ManifestState.COMMITTED
""",
        ),
    ),
    Mutation(
        "compare-and-set of the mark",
        "changes the state of a batch whatever it is",
        QUERIES,
        Edit(
            """
    manifests.c.digest == sa.bindparam("given_digest"),
    manifests.c.state == ManifestState.PREPARED.value,
""",
            """
    sa.bindparam("given_digest") != "",
""",
        ),
    ),
    # Clean-up
    Mutation(
        "clean-up: settled",
        "deletes files of batches that may still be committed",
        CLEANUP,
        Edit(
            """
    if name.batch_id > settled[name.query_id]:
        return FileStatus.UNSETTLED
""",
            "",
        ),
        Edit(
            """
            if name is not None and name.batch_id <= settled.get(name.query_id, -1)
""",
            """
            if name is not None
""",
        ),
    ),
    Mutation(
        "clean-up: named by the table",
        "deletes files that a version of the table names",
        CLEANUP,
        Edit(
            """
        for names in self._table.names():
            _drop(files, names)
""",
            "",
        ),
        Edit(
            """
        for names in self._table.names():
            _drop(left, names)
""",
            "",
        ),
        Edit(
            """
            if any(verdict is FileStatus.UNNEEDED for _, verdict in files.values()):
""",
            """
            if False:
""",
        ),
        Edit(
            """
                if query_id == stream.query_id and self._holds(stream, batch_id):
""",
            """
                if False:
""",
        ),
    ),
    Mutation(
        "clean-up: ours",
        "deletes files that others have written",
        CLEANUP,
        Edit(
            """
    if name is None or name.query_id not in settled:
        return FileStatus.NOT_OURS
""",
            """
    if name is None:
        return FileStatus.UNNEEDED
    if name.query_id not in settled:
        return FileStatus.NOT_OURS
""",
        ),
        Edit(
            """
        for names in self._table.names():
            _drop(files, names)
""",
            "",
        ),
        Edit(
            """
            if name is not None and name.batch_id <= settled.get(name.query_id, -1)
""",
            """
            if name is None or name.batch_id <= settled.get(name.query_id, -1)
""",
        ),
        Edit(
            """
        for names in self._table.names():
            _drop(left, names)
""",
            "",
        ),
    ),
    Mutation(
        "clean-up: grace period",
        "deletes files however young they are",
        CLEANUP,
        Edit(
            """
    return FileStatus.UNNEEDED if file.modified_at < written_before else FileStatus.YOUNG
""",
            """
    return FileStatus.UNNEEDED
""",
        ),
    ),
    # Snapshot expiry
    Mutation(
        "expiry: what stays is needed",
        "deletes files that snapshots which stay need as well",
        REACHABILITY,
        Edit(
            """
    kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone]
""",
            """
    kept: list[Snapshot] = []
""",
        ),
        Edit(
            """
    needed = data_files - without_live(data_files, io, fresh)
    return needed | before.intersection(current) | metadata_files(metadata, metadata.snapshots)
""",
            """
    return set()
""",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "expiry: files go after the snapshots",
        "deletes the files of a plan although its snapshots are still in the table",
        EXPIRY,
        Edit(
            """
            if expiry.expired_at is not None:
""",
            """
            if True:
""",
        ),
        Edit(
            """
            needed = needed_again(table.io, table.metadata, files)
""",
            """
            needed: set[str] = set()
""",
        ),
        lakes=("iceberg",),
    ),
    Mutation(
        "expiry: grace period",
        "deletes files of snapshots that have just expired",
        EXPIRY,
        Edit(
            """
        for expiry in self._store.of_table(table_id, now - timedelta(seconds=self._policy.grace_s)):
""",
            """
        for expiry in self._store.of_table(table_id, now):
""",
        ),
        lakes=("iceberg",),
    ),
    # Deliveries
    Mutation(
        "recovery ends at the first batch that stays pending",
        "goes on with the batches after it",
        RECOVERY,
        Edit(
            """
            if recovered.state is not ManifestState.COMMITTED:
                return
""",
            """
            if False:
                return
""",
        ),
    ),
    Mutation(
        "overlap check",
        "lands a delivery on a table that holds a part of it",
        "committers/deliveries/contract.py",
        Edit(
            """
    if first <= token.batch_id < manifest.batch.batch_id:
""",
            """
    if False:
""",
        ),
    ),
    Mutation(
        "settle",
        "delivers batches again that the table's token has passed",
        DELIVERER,
        Edit(
            """
        self._settle()
        chosen, why = self._choose(state, trigger)
""",
            """
        chosen, why = self._choose(state, trigger)
""",
        ),
    ),
    Mutation(
        "files of a delivery are looked for before it is prepared",
        "delivers batches whose files are gone",
        DELIVERER,
        Edit(
            """
        self._check_files(merged)
""",
            "",
        ),
        lakes=("iceberg",),  # in Delta the vacuum check stands behind it
    ),
    Mutation(
        "a rewritten delivery whose files are gone is let go",
        "commits it all the same",
        DELIVERER,
        Edit(
            """
            if missing:  # if they were rewritten, the batches still have theirs
""",
            """
            if False:
""",
        ),
    ),
    Mutation(
        "deliverAfterCheckpoint",
        "delivers batches that Spark's commits log does not have",
        DELIVERER,
        Edit(
            """
        return [record for record in records if record.batch.batch_id <= last]
""",
            """
        return records
""",
        ),
    ),
    Mutation(
        "a failed overlap lets the delivery go",
        "tries a delivery again of which another process has landed a part",
        DELIVERER,
        Edit(
            """
            self._deliveries.abandon(delivery, str(error))
            raise RetryableError(str(error)) from error
""",
            """
            raise RetryableError(str(error)) from error
""",
        ),
    ),
    Mutation(
        "the batches before are known, or delivered",
        "goes on although batches went with the store",
        DECOUPLED,
        Edit(
            """
        if last < batch.batch_id - 1:
""",
            """
        if False:
""",
        ),
    ),
    Mutation(
        "digest of a prepared batch (decoupled)",
        "skips a batch that is prepared from other offsets",
        DECISION,
        Edit(
            """
    RecordStatus.PREPARED: _ALWAYS_SKIP,
""",
            """
    RecordStatus.PREPARED: _ALWAYS_SKIP,
    RecordStatus.PREPARED_OTHER: _ALWAYS_SKIP,
""",
        ),
        needs=("decoupled", "rewind_checkpoint"),
    ),
    Mutation(
        "the batch before is the same",
        "writes a batch behind one that the store has from other offsets",
        COPIES,
        Edit(
            """
        elif digest is not None and digest != before.batch.digest:
""",
            """
        elif False:
""",
        ),
    ),
    Mutation(
        "an aborted batch before is the same",
        "writes a batch behind one that a copy had put in its place and an operator has aborted",
        COPIES,
        Edit(
            """
        digest, what = digest_of(before.batch.batch_id), ""
""",
            """
        if before.is_dropped:
            return before
        digest, what = digest_of(before.batch.batch_id), ""
""",
        ),
        needs=("decoupled", "one_store"),
        others=("abort", "copy_checkpoint", "reset_checkpoint", "deliver"),
        first=746000,
    ),
    Mutation(
        "what an operator aborts is what was seen",
        "gives up whatever is prepared by then",
        "cli/admin.py",
        Edit(
            """
        records = store.deliveries.abort_pending(stream.key, last, who, why, expected=expected)
""",
            """
        records = store.deliveries.abort_pending(stream.key, last, who, why)
""",
        ),
        needs=("decoupled", "one_store"),
        others=("abort", "copy_checkpoint", "reset_checkpoint", "deliver"),
    ),
    Mutation(
        "the batch before waits for no replay",
        "writes a batch behind one that was given up and never written again",
        COPIES,
        Edit(
            """
        if before.awaits_replay:
""",
            """
        if False:
""",
        ),
        needs=("decoupled", "copy_checkpoint"),
    ),
    Mutation(
        "the batch before is still the same when one is prepared",
        "prepares a batch behind one that a copy of the checkpoint has put in its place meanwhile",
        DECOUPLED,
        Edit(
            """
        before = self._forks.check_before(
            manifest.batch,
            lambda batch_id: digest_before if batch_id == last else None,
            is_delivered=True,
        )
""",
            """
        before = self._forks.check_before(manifest.batch, lambda _: None)
""",
        ),
        test=DECOUPLED_TESTS + "test_a_batch_is_not_prepared_behind_the_one_of_a_copy",
    ),
    Mutation(
        "what waits behind a skipped batch is given up with it (decoupled)",
        "gives up only behind a prepared one, when other rows come in its place",
        DECOUPLED,
        Edit(
            """
        if action is Action.SUPERSEDE and record is not None:
""",
            """
        if action is Action.SUPERSEDE and record is not None and record.state is ManifestState.PREPARED:
""",
        ),
        test=DECOUPLED_TESTS + "test_a_later_batch_is_never_left_waiting_behind_one_that_is_written_again",
    ),
    Mutation(
        "a copy that must part gives up nothing",
        "gives up the other copy's batch before it is refused",
        DECOUPLED,
        Edit(
            """
        if action is not Action.SKIP or is_pending:
            before = self._forks.check_before(batch, digest_of, is_delivered=True)
            if before is None and record is None:
                self._check_nothing_lost(batch)
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
""",
            """
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
        if action is not Action.SKIP or is_pending:
            before = self._forks.check_before(batch, digest_of, is_delivered=True)
            if before is None and record is None:
                self._check_nothing_lost(batch)
""",
        ),
        Edit(
            """
        self._forks.check_before(batch, digest_of)
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
""",
            """
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
        self._forks.check_before(batch, digest_of)
""",
            file=TWO_PHASE,
        ),
        needs=("decoupled", "one_store", "twins"),
        others=("skip", "copy_checkpoint"),
    ),
    Mutation(
        "nothing hides behind a skipped batch",
        "looks no further than the batch before",
        COPIES,
        Edit(
            """
            if (gap := self.gap_before(before.batch)) is not None:
                raise mismatch(batch, never_came_back(gap))
""",
            "",
        ),
        test=DECOUPLED_TESTS + "test_a_skipped_batch_hides_none_that_was_given_up",
    ),
    Mutation(
        "the manifest of other rows is not taken",
        "lands whatever the store has under the batch id by now",
        LANDING,
        Edit(
            """
    if manifest is None or manifest.batch != batch:
""",
            """
    if manifest is None:
""",
        ),
        test=TWO_PHASE_TESTS + "test_the_manifest_of_other_rows_is_not_taken_for_an_earlier_one",
    ),
    Mutation(
        "a batch whose files are gone stays prepared until its replay is",
        "gives it up, though a decoupled twin may have gone on behind it",
        RECOVERY,
        Edit(
            """
        return Recovered(record, ManifestState.PREPARED, f"the replay writes it again: {why}")
""",
            """
        return self._finish(record, ManifestState.ABORTED, f"the replay writes it again: {why}")
""",
        ),
        test=DECOUPLED_TESTS + "test_a_coupled_replay_whose_files_are_gone_leaves_what_a_twin_has_logged",
    ),
    Mutation(
        "a batch that the table takes no more gives way to its replay",
        "tries the earlier manifest again and again",
        TWO_PHASE,
        Edit(
            """
            if is_refused and self._preparation.put(manifest, committables, replacing=earlier).is_ours:
""",
            """
            if False:
""",
        ),
        others=("go_back",),
    ),
    Mutation(
        "a delivery goes by the store alone",
        "prepares a batch behind one that the store has given up, if the table has that",
        COPIES,
        Edit(
            """
        if what and is_delivered and not before.is_dropped:
""",
            """
        if False:
""",
        ),
        test=DECOUPLED_TESTS
        + "test_a_batch_is_not_prepared_behind_one_that_the_store_has_given_up_though_the_table_has_it",
    ),
    Mutation(
        "what was skipped behind a batch that is given up waits for its replay",
        "leaves the operator's word on rows that followed on others",
        QUERIES,
        Edit(
            """
    connection.execute(sa.update(manifests).where(*are_skipped).values(told))
""",
            "",
        ),
    ),
    Mutation(
        "what an operator gives up is what was seen",
        "skips whatever rows have come under the batch id meanwhile",
        "committers/store/operator_actions.py",
        Edit(
            """
            if expected is not None and expected.digest != row.digest:
""",
            """
            if False:
""",
        ),
    ),
    Mutation(
        "a start stops at batches behind one that waits for its replay",
        "writes the next batch, whose token says that they landed",
        RECOVERY,
        Edit(
            """
            if gap is not None and replay is not None and record.batch.batch_id < replay.batch_id:
""",
            """
            if False:
""",
        ),
        test=DECOUPLED_TESTS + "test_a_coupled_query_does_not_go_on_over_a_batch_that_waits_for_its_replay",
    ),
    Mutation(
        "recovery stops behind a batch that waits for its replay",
        "lands what was prepared behind it",
        RECOVERY,
        Edit(
            """
            gap = self._forks.gap_before(record.batch)
""",
            """
            gap = None
""",
        ),
        needs=("mixed", "own_stores"),
        others=("copy_checkpoint", "recover"),
    ),
    Mutation(
        "delivered meanwhile",
        "calls a batch lost whose files a delivery has just rewritten",
        RECOVERY,
        Edit(
            """
        if missing and self._commit_runner.state(batch) is ManifestState.COMMITTED:  # with other files
""",
            """
        if False:
""",
        ),
        needs=("mixed",),
        others=("deliver",),
    ),
    Mutation(
        "what an operator has given up is not written again",
        "gives up, for its replay, what was prepared behind it",
        DECISION,
        Edit(
            """
    RecordStatus.SKIPPED: _ALWAYS_SKIP,
""",
            """
    RecordStatus.SKIPPED: _SUPERSEDE,
""",
        ),
        needs=("decoupled", "twins", "skip"),
    ),
    Mutation(
        "only a replay gives up a batch that is in the table from other offsets",
        "aborts it although Spark does not run it again",
        RECOVERY,
        Edit(
            """
            if not is_replayed:  # nobody would write it again
""",
            """
            if False:
""",
        ),
        needs=("copy_checkpoint", "recover"),
    ),
    Mutation(
        "the table's last batch is this checkpoint's",
        "writes a batch behind one that a copy has landed, if the store was lost",
        COPIES,
        Edit(
            """
            self._check_last_in_table(batch, digest_of)
            return None
""",
            """
            return None
""",
        ),
        needs=("decoupled", "own_stores"),
        others=("copy_checkpoint", "lose_store"),
    ),
    Mutation(
        "a batch lands only behind what its store knows of",
        "lands behind a batch that a copy of the checkpoint has landed meanwhile",
        LANDING,
        Edit(
            """
        self._forks.check_token(batch.stream, token)
""",
            "",
        ),
        lakes=("delta",),
        needs=("own_stores",),
        others=("abort", "copy_checkpoint", "skip"),
        first=916588,
    ),
    Mutation(
        "the token is of this very stream",
        "settles batches by the token of a copy of the checkpoint",
        DELIVERER,
        Edit(
            """
            self._check_token_is_ours(token, record, newest=records[-1].batch.batch_id)
""",
            "",
        ),
        lakes=("iceberg",),
        needs=("decoupled", "own_stores"),
        others=("copy_checkpoint", "reset_checkpoint", "expire", "deliver"),
        first=11_600,
    ),
    Mutation(
        "sources: named by the table",
        "deletes files that a rewritten delivery has replaced, although the table names them",
        SOURCES,
        Edit(
            """
    for names in table.names():
""",
            """
    for names in ():
""",
        ),
    ),
    Mutation(
        "sources: the delivery's own files are none",
        "deletes files that a rewritten delivery has kept, and those that it has made",
        SOURCES,
        Edit(
            """
    return set(_paths(store.deliveries.sources(delivery))) - kept
""",
            """
    return set(_paths(store.deliveries.sources(delivery))) | kept
""",
        ),
        Edit(
            """
    for names in table.names():
""",
            """
    for names in ():
""",
        ),
    ),
    # Deliveries in the store
    Mutation(
        "fence: a delivery needs the lease",
        "lets a process prepare a delivery that was taken over",
        DELIVERY_QUERIES,
        Edit(
            """
    if row is not None and (row.holder, row.fence) == (lease.holder, lease.fence) and row.expires_at:
""",
            """
    if row is not None:
""",
        ),
    ),
    Mutation(
        "a delivery leaves no batch out",
        "takes a delivery of batches that are not pending any more, or passes one that is",
        DELIVERY_QUERIES,
        Edit(
            """
    if found != wanted:
""",
            """
    if False:
""",
        ),
    ),
    Mutation(
        "one unfinished delivery at most",
        "prepares a second one beside it",
        DELIVERY_QUERIES,
        Edit(
            """
    if taken := [row for row in rows if row.delivery_id is not None]:
""",
            """
    if taken := list[sa.Row[tuple[object, ...]]]():
""",
        ),
        Edit(
            """
    unique=True,
    sqlite_where=IS_UNFINISHED,
""",
            """
    unique=False,
    sqlite_where=IS_UNFINISHED,
""",
            "committers/store/tables.py",
        ),
    ),
    Mutation(
        "a batch that is being delivered is not given up",
        "aborts it although the delivery may land",
        STORE,
        Edit(
            """
        is_aborted = state is ManifestState.ABORTED
""",
            """
        is_aborted = False
""",
        ),
    ),
    Mutation(
        "a batch that is being delivered is not skipped",
        "skips it although the delivery may land",
        "committers/store/operator_actions.py",
        Edit(
            """
            if row.delivery_id is not None:
                raise _being_delivered(stream, batch_id, row.delivery_id)
""",
            "",
        ),
    ),
    Mutation(
        "compare-and-set of a delivery",
        "finishes a delivery that was abandoned, or another one of the same number",
        DELIVERY_QUERIES,
        Edit(
            """
    update = sa.update(deliveries).where(is_it, is_prepared, is_same).values(values)
""",
            """
    update = sa.update(deliveries).where(is_it).values(values)
""",
        ),
    ),
    Mutation(
        "a follower needs the batch before",
        "prepares a batch behind one that went with the store, or was given up, since it was planned",
        STORE,
        Edit(
            """
            if follows is not None:
""",
            """
            if False:
""",
        ),
    ),
    Mutation(
        "other rows do not come in front of what follows on the old ones",
        "prepares them in the place of what was given up, whatever was prepared behind it since",
        STORE,
        Edit(
            """
                if record.batch != batch and queries.is_followed(connection, stream_id, batch.batch_id):
""",
            """
                if False:
""",
        ),
    ),
    Mutation(
        "compare-and-set of giving up",
        "gives up what a twin has prepared since the record was read",
        STORE,
        Edit(
            """
    return row is not None and queries.to_record(expected.batch.stream, row) == expected
""",
            """
    return True
""",
        ),
    ),
    Mutation(
        "delivery waits for a replay",
        "delivers batches behind one that was given up for its replay",
        DELIVERY_QUERIES,
        Edit(
            """
    gap: int | None = connection.scalar(query)
""",
            """
    gap = None
""",
        ),
    ),
    Mutation(
        "clean-up: named by an unfinished delivery",
        "deletes the rewritten files of a delivery that is not finished",
        "committers/store/contents.py",
        Edit(
            """
    if state is not ManifestState.ABORTED:  # no name of an abandoned delivery matters
""",
            """
    if False:
""",
        ),
        Edit(
            """
    if name.batch_id > settled[name.query_id]:
        return FileStatus.UNSETTLED
""",
            "",
            CLEANUP,
        ),
        Edit(
            """
            if name is not None and name.batch_id <= settled.get(name.query_id, -1)
""",
            """
            if name is not None
""",
            CLEANUP,
        ),
    ),
)
