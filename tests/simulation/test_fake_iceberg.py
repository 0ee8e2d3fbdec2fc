"""The Iceberg table in the simulation's memory does what pyiceberg and Iceberg's REST server do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField
from tests.simulation.iceberg_lake import IcebergSimLake
from tests.simulation.iceberg_sides import GRACE_S, Side, outcome, real_side, simulated_side
from tests.simulation.scheduler import Hazards, Scheduler

from penstock.committers.contract import Committed, Manifest
from penstock.committers.errors import CommitStateUnknownError, RetryableError, TableChangedError
from penstock.committers.iceberg.catalog import CatalogConfig
from penstock.committers.iceberg.table import committed_batch
from penstock.committers.iceberg.target import NO_SNAPSHOT

if TYPE_CHECKING:
    from servers.rest_catalog import RestCatalogServer

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
LATER = timedelta(seconds=GRACE_S + 1)


@pytest.fixture(params=["simulated", "embedded", "simulated, remote", "REST server"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    """A table that does not exist yet; all claims hold of the simulated ones and of the real ones."""
    made = _sides(request, tmp_path)[request.param]()
    with made.active():
        yield made


def _sides(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Callable[[], Side]]:
    def on_server() -> Side:
        server: RestCatalogServer = request.getfixturevalue("rest_catalog")
        return real_side("REST server", CatalogConfig("rest", server.properties), tmp_path.name)

    return {
        "simulated": lambda: simulated_side(is_remote=False),
        "simulated, remote": lambda: simulated_side(is_remote=True),
        "embedded": lambda: real_side("embedded", CatalogConfig.of(None, {}, str(tmp_path))),
        "REST server": on_server,
    }


@pytest.fixture
def table(side: Side) -> Side:
    """One that has a batch."""
    assert isinstance(side.committer.commit(side.manifest(0)), Committed)
    return side


# Creation -------------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_not_found(side: Side) -> None:
    with pytest.raises(NoSuchTableError):
        side.catalog.load_table(side.address.identifier)


def test_a_table_is_created_once(side: Side) -> None:
    side.catalog.create_namespace(side.address.identifier[:-1])
    side.catalog.create_table(side.address.identifier, SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        side.catalog.create_table(side.address.identifier, SCHEMA)


def test_a_table_needs_its_namespace(side: Side) -> None:
    """Servers differ: some, the one of these tests among them, make do without."""
    namespace = (f"beside_{side.address.identifier[0]}",)
    assert not side.catalog.namespace_exists(namespace)
    if side.name != "REST server":
        with pytest.raises(NoSuchNamespaceError):
            side.catalog.create_table((*namespace, "orders"), SCHEMA)
    side.catalog.create_namespace(namespace)
    assert side.catalog.namespace_exists(namespace)
    with pytest.raises(NamespaceAlreadyExistsError):
        side.catalog.create_namespace(namespace)


def test_a_new_table_has_no_snapshot_and_its_properties(side: Side) -> None:
    side.plan()
    metadata = side.load().metadata
    assert (metadata.snapshots, metadata.refs, metadata.next_sequence_number()) == ([], {}, 1)
    assert (metadata.current_schema_id, metadata.default_spec_id, metadata.last_column_id) == (0, 0, 1)
    assert metadata.properties["commit.manifest.min-count-to-merge"] == "3"
    assert "format-version" not in metadata.properties


def test_the_plan_names_the_head_that_it_saw(side: Side) -> None:
    assert side.plan().table_version == NO_SNAPSHOT
    for batch_id in range(2):
        committed = side.committer.commit(side.manifest(batch_id))
        assert isinstance(committed, Committed)
        assert side.plan().table_version == committed.table_version
    assert side.plan().table_id == str(side.load().metadata.table_uuid)


def test_a_table_created_anew_has_another_uuid_and_refuses_attempts_on_the_old_one(table: Side) -> None:
    attempt = table.attempt(table.manifest(1))
    old = table.load().metadata.table_uuid
    table.catalog.drop_table(table.address.identifier)
    with pytest.raises(RESTError if table.is_remote else CommitFailedException):
        attempt.send()
    table.plan()
    assert table.load().metadata.table_uuid != old
    with pytest.raises(CommitFailedException):
        attempt.send()
    assert table.live() == []


# Commits --------------------------------------------------------------------------------------------


def test_of_two_attempts_on_one_head_the_first_lands_and_the_second_is_refused(table: Side) -> None:
    stale = table.load()
    first = table.attempt(table.manifest(1), stale)
    second = table.attempt(table.manifest(2), stale)
    first.send()
    with pytest.raises(CommitFailedException):
        second.send()
    assert table.live() == ["b0-0.parquet", "b0-1.parquet", "b1-0.parquet", "b1-1.parquet"]
    landed = committed_batch(table.load().metadata, "q", "main")
    assert landed is not None
    assert (landed.batch_id, landed.snapshot_id) == (1, first.snapshot_id)


@pytest.mark.parametrize("side", ["simulated", "embedded"], indirect=True)
def test_who_is_overtaken_inside_the_catalog_is_refused(table: Side) -> None:
    """Between the look at the table that a commit is checked against, and the change of its row."""
    overtaken, first = table.attempt(table.manifest(2)), table.attempt(table.manifest(1))
    load = table.catalog.load_table

    def load_and_be_overtaken(identifier: Any) -> Any:
        table.catalog.load_table = load  # type: ignore[method-assign]
        loaded = load(identifier)
        first.send()
        return loaded

    table.catalog.load_table = load_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match="updated by another process"):
        overtaken.send()
    assert table.live() == ["b0-0.parquet", "b0-1.parquet", "b1-0.parquet", "b1-1.parquet"]
    assert len([path for path in table.files() if path.endswith(".json")]) == 4


def test_an_attempt_that_has_landed_is_refused_the_second_time(table: Side) -> None:
    attempt = table.attempt(table.manifest(1))
    attempt.send()
    with pytest.raises(CommitFailedException):
        attempt.send()
    assert len(table.live()) == 4


def test_an_attempt_requires_the_table_its_schema_its_partitioning_and_the_head(table: Side) -> None:
    metadata = table.load().metadata
    attempt = table.attempt(table.manifest(1))
    assert [requirement.model_dump() for requirement in attempt.requirements] == [
        {"type": "assert-table-uuid", "uuid": metadata.table_uuid},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
        {"type": "assert-default-spec-id", "default-spec-id": 0},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": metadata.current_snapshot_id},
    ]
    assert [update.action for update in attempt.updates] == [
        "add-snapshot",
        "set-snapshot-ref",
        "set-properties",
    ]


def test_the_first_attempt_requires_that_there_is_no_head(side: Side) -> None:
    side.plan()
    attempts = [side.attempt(side.manifest(batch_id)) for batch_id in (0, 1)]
    attempts[0].send()
    with pytest.raises(CommitFailedException):
        attempts[1].send()


def test_an_attempt_is_refused_when_another_branch_has_moved(table: Side) -> None:
    """Sequence numbers are the table's: this one's is taken, and the head is still the one looked at."""
    table.on_branch("audit").plan()
    attempt = table.attempt(table.manifest(1))
    table.on_branch("audit").committer.commit(table.on_branch("audit").manifest(7))
    with pytest.raises(CommitFailedException if table.is_remote else ValueError, match="sequence number"):
        attempt.send()
    assert len(table.live()) == 2


def test_a_branch_begins_at_main_and_leaves_it_alone(table: Side) -> None:
    audit = table.on_branch("audit")
    audit.plan()
    assert isinstance(audit.committer.commit(audit.manifest(5)), Committed)
    assert table.live("audit") == ["b0-0.parquet", "b0-1.parquet", "b5-0.parquet", "b5-1.parquet"]
    assert table.live() == ["b0-0.parquet", "b0-1.parquet"]


def test_an_overwrite_replaces_all_files_in_one_snapshot(table: Side) -> None:
    table.committer.commit(table.manifest(1))
    table.committer.commit(table.manifest(2, overwrite=True))
    assert table.live() == ["b2-0.parquet", "b2-1.parquet"]
    assert len(table.load().metadata.snapshots) == 3


def test_small_manifests_are_merged_and_keep_who_added_what(table: Side) -> None:
    for batch_id in range(1, 5):
        table.committer.commit(table.manifest(batch_id))
    loaded = table.load()
    counts, numbers = [], set()
    for snapshot in loaded.metadata.snapshots:
        manifests = snapshot.manifests(loaded.io)
        counts.append(len(manifests))
        for entry in (entry for one in manifests for entry in one.fetch_manifest_entry(loaded.io)):
            name = entry.data_file.file_path.rpartition("/")[2]
            numbers.add((name[:2], entry.sequence_number, entry.file_sequence_number))
    assert counts == [1, 2, 1, 2, 1]
    assert numbers == {(f"b{number}", number + 1, number + 1) for number in range(5)}
    assert [one.sequence_number for one in loaded.metadata.snapshots] == [1, 2, 3, 4, 5]


def test_discard_leaves_what_was_there_before(table: Side) -> None:
    """Of attempts that merge manifests, too."""
    for batch_id in range(1, 4):
        manifest = table.manifest(batch_id)
        before = set(table.files())
        attempt = table.attempt(manifest)
        assert set(table.files()) > before
        attempt.discard()
        assert set(table.files()) == before
        table.committer.commit(manifest)


def test_a_conflict_leaves_no_manifests(table: Side) -> None:
    manifests = [table.manifest(1), table.manifest(2)]
    stale = table.load()
    first, second = (table.attempt(manifest, stale) for manifest in manifests)
    before = len(table.files())
    first.send()
    with pytest.raises(CommitFailedException):
        second.send()
    second.discard()
    assert len(table.files()) == before + 1 - 2
    assert len(table.live()) == 4


def test_an_attempt_that_cannot_read_what_it_merges_leaves_nothing(table: Side) -> None:
    table.committer.commit(table.manifest(1))
    loaded, manifest = table.load(), table.manifest(2)
    head = loaded.metadata.snapshot_by_name("main")
    assert head is not None
    oldest = head.manifests(loaded.io)[-1]
    loaded.io.delete(oldest.manifest_path)
    before = set(table.files())
    with pytest.raises(FileNotFoundError):
        table.attempt(manifest)
    assert set(table.files()) == before


def test_a_file_that_is_not_there_cannot_be_deleted(table: Side) -> None:
    loaded = table.load()
    with pytest.raises(FileNotFoundError):
        loaded.io.delete(f"{loaded.location()}/metadata/none.avro")


def test_what_one_reader_changes_no_other_sees(table: Side) -> None:
    loaded = table.load()
    head = loaded.metadata.snapshot_by_name("main")
    assert head is not None
    (manifest,) = head.manifests(loaded.io)
    manifest.fetch_manifest_entry(loaded.io)[0].status = ManifestEntryStatus.DELETED
    assert len(table.live()) == 2


def test_old_metadata_files_are_deleted(table: Side) -> None:
    for batch_id in range(1, 7):
        table.committer.commit(table.manifest(batch_id))
    named = {entry.metadata_file.rpartition("/")[2] for entry in table.load().metadata.metadata_log}
    there = {path.rpartition("/")[2] for path in table.files() if path.endswith(".metadata.json")}
    assert len(named) == 3
    assert there == named | {table.load().metadata_location.rpartition("/")[2]}


# Rollback and expiry --------------------------------------------------------------------------------


def test_a_rollback_takes_back_rows_and_no_property(table: Side) -> None:
    head = table.load().metadata.current_snapshot_id
    assert head is not None
    table.committer.commit(table.manifest(1))
    table.engine.roll_back(head)
    assert table.live() == ["b0-0.parquet", "b0-1.parquet"]
    landed = committed_batch(table.load().metadata, "q", "main")
    assert landed is not None
    assert landed.batch_id == 1
    with pytest.raises(TableChangedError, match="rolled back"):
        table.committer.token("q")
    table.committer.accept("q")
    token = table.committer.token("q")
    assert token is not None
    assert token.batch_id == 1


def test_a_token_outlives_the_expiry_of_its_snapshot(table: Side) -> None:
    table.engine.append(100)
    table.engine.append(101)
    table.engine.expire(keep=1)
    metadata = table.load().metadata
    assert [snapshot.sequence_number for snapshot in metadata.snapshots] == [3]
    assert (metadata.snapshots[0].parent_snapshot_id is None) != table.is_remote
    token = table.committer.token("q")
    assert token is not None
    assert token.batch_id == 0
    table.committer.commit(table.manifest(1))
    assert [one.sequence_number for one in table.load().metadata.snapshots] == [3, 4]


def test_an_expired_head_takes_its_branch_with_it(table: Side) -> None:
    """Whoever does not ask for the head to be the same loses the branch: so the product asks."""
    loaded = table.load()
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [loaded.metadata.current_snapshot_id]})
    requirement = AssertTableUUID(uuid=loaded.metadata.table_uuid)
    table.catalog.commit_table(loaded, (requirement,), (update,))
    assert (table.load().metadata.refs, table.load().metadata.current_snapshot_id) == ({}, None)


def test_expiry_is_refused_if_a_tag_was_set_meanwhile_where_that_can_be_asked(table: Side) -> None:
    """The embedded catalog can; a server takes the snapshot out, with its tag."""
    for batch_id in range(1, 5):
        table.committer.commit(table.manifest(batch_id))
    stale = table.load()
    oldest = stale.metadata.snapshots[0].snapshot_id
    tag = SetSnapshotRefUpdate.model_validate(
        {"ref-name": "kept", "type": SnapshotRefType.TAG, "snapshot-id": oldest}
    )
    table.catalog.commit_table(stale, (), (tag,))
    load, table.load = table.load, lambda: stale  # type: ignore[method-assign]
    expired = table.expire()
    table.load = load  # type: ignore[method-assign]
    assert expired.snapshots == (3 if table.is_remote else 0)
    assert ("kept" in table.load().metadata.refs) is not table.is_remote


def test_expired_snapshots_go_first_and_their_files_after_the_grace_period(table: Side) -> None:
    for batch_id in range(1, 6):
        table.committer.commit(table.manifest(batch_id))
    table.engine.compact()
    table.committer.commit(table.manifest(6))
    before, live = set(table.files()), set(table.live())
    names = set().union(*table.cleanable().names())
    assert table.expire().snapshots == 6
    assert set().union(*table.cleanable().names()) == names
    expired = table.expire(after=LATER)
    gone = {path.rpartition("/")[2] for path in before - set(table.files())}
    assert (expired.snapshots, expired.files) == (0, len([name for name in gone if "metadata" not in name]))
    assert {name for name in gone if name.endswith(".parquet")} == names - live
    assert set().union(*table.cleanable().names()) == live


def test_a_compaction_gives_up_when_one_of_its_files_has_gone(table: Side) -> None:
    """Its own file goes too; and files that were added meanwhile stay."""
    engine = table.engine
    writing = engine._write_file

    def compact_while_the_product_commits(manifest: Manifest) -> None:
        def write(rows: tuple[int, ...]) -> Any:
            table.committer.commit(manifest)
            return writing(rows)

        engine._write_file = write  # type: ignore[method-assign]
        engine.compact()

    compact_while_the_product_commits(table.manifest(1, overwrite=True))
    assert table.live() == ["b1-0.parquet", "b1-1.parquet"]
    assert not [path for path in table.files() if "other-" in path]
    compact_while_the_product_commits(table.manifest(2))
    assert table.live() == ["b2-0.parquet", "b2-1.parquet", "other-1.parquet"]


def test_clean_up_sees_files_and_names(table: Side) -> None:
    table.committer.commit(table.manifest(1))
    orphan = table.manifest(2)
    table.committer.commit(table.manifest(3, overwrite=True))
    listed = {file.path for file in table.cleanable().files()}
    assert listed == {f"b{batch_id}-{part}.parquet" for batch_id in range(4) for part in range(2)}
    names = set().union(*table.cleanable().names())
    assert names == listed - {"b2-0.parquet", "b2-1.parquet"}
    _, tokens = table.cleanable().id_and_tokens(["q", "another"])
    assert {query_id: token.batch_id for query_id, token in tokens.items()} == {"q": 3}
    assert table.committer.delete_files(["b2-0.parquet", "not there"]) == 1
    assert table.committer.missing(orphan) == ["b2-0.parquet"]


# Lost answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_remote", "hazards", "ends_in"),
    [
        (True, Hazards(unanswered=1.0), Committed),
        (True, Hazards(repeated=1.0), Committed),
        (True, Hazards(late=1.0), CommitStateUnknownError),
        (True, Hazards(full=1.0), CommitStateUnknownError),
        (False, Hazards(unanswered=1.0), Committed),
        (False, Hazards(repeated=1.0), Committed),
        (False, Hazards(late=1.0), Committed),
        (False, Hazards(full=1.0), RetryableError),
    ],
)
def test_what_becomes_of_the_request_decides_the_outcome(
    is_remote: bool, hazards: Hazards, ends_in: type[Any]
) -> None:
    """Only what the catalog is asked to change is hit; whatever is late, lands, and is found.

    Nothing repeats a request to the embedded catalog, or can deliver it late.
    """
    lake = IcebergSimLake(Scheduler(0), is_remote=is_remote)
    side = simulated_side(is_remote=is_remote, lake=lake)
    scheduler = lake.objects.scheduler
    with lake.installed():
        manifest = side.manifest(0)
        asked = scheduler.request

        def request(what: str, *args: Any, **kwargs: Any) -> Any:
            scheduler.hazards = hazards if what in ("commit table", "update table") else Hazards()
            return asked(what, *args, **kwargs)

        scheduler.request = request  # type: ignore[method-assign]
        ended: list[Any] = []
        actor = scheduler.spawn("driver", lambda: ended.append(side.committer.commit(manifest)))
        scheduler.run(10_000)
        assert isinstance(actor.error or ended[0], ends_in)
        landed = ends_in is Committed or bool(hazards.late)
        assert (side.committer.token("q") is not None) is landed
        assert len(side.live()) == (2 if landed else 0)
        scheduler.end()


# Histories ------------------------------------------------------------------------------------------

STEPS = st.sampled_from(
    [
        *[("prepare", slot) for slot in (0, 1)],
        *[("send", slot) for slot in (0, 0, 0, 1, 1, 1)],
        ("discard", 0),
        *[("commit", back) for back in (0, 0, 1)],
        ("overwrite", 0),
        *[("append", 0)] * 2,
        *[("compact", 0)] * 2,
        *[("roll back", back) for back in (1, 2)],
        ("accept", 0),
        *[("foreign expire", keep) for keep in (1, 2)],
        *[("expire", grace_periods) for grace_periods in (0, 0, 1, 1)],
    ]
)
BEGINNING = [("commit", 0), ("append", 0), ("commit", 0), ("prepare", 0), ("prepare", 1)]
"""What happens, and a number: of an attempt, of batches or snapshots back, of snapshots kept."""


class History:
    """What is done to one side. The same steps make the same history, on whichever side."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._attempts: dict[int, Any] = {}
        self._batches = 0

    def take(self, step: tuple[str, int]) -> Any:
        """Take a step, and tell how it ended."""
        what, number = step
        with self.side.active():
            return outcome(lambda: getattr(self, f"_{what.replace(' ', '_')}")(number))

    def look(self) -> Any:
        with self.side.active():
            token = outcome(lambda: getattr(self.side.committer.token("q"), "batch_id", None))
            names = set().union(*self.side.cleanable().names())
            return {**self.side.shape(), "token": token, "names": names}

    def _prepare(self, number: int) -> None:
        self._batches += 1
        self._attempts[number] = self.side.attempt(self.side.manifest(self._batches))

    def _send(self, number: int) -> Any:
        """Again, if it was sent before."""
        return self._attempts[number].send() if number in self._attempts else "nothing to send"

    def _discard(self, number: int) -> None:
        """Of one that is left: what has landed is never discarded."""
        heads = [one.snapshot_id for one in self.side.load().metadata.snapshots]
        attempt = self._attempts.pop(number, None)
        if attempt is not None and attempt.snapshot_id not in heads:
            attempt.discard()

    def _commit(self, back: int) -> Any:
        self._batches += 1 - back
        return self.side.committer.commit(self.side.manifest(self._batches))

    def _overwrite(self, _: int) -> Any:
        self._batches += 1
        return self.side.committer.commit(self.side.manifest(self._batches, overwrite=True))

    def _append(self, _: int) -> None:
        self.side.engine.append(1)

    def _compact(self, _: int) -> None:
        self.side.engine.compact()

    def _roll_back(self, back: int) -> None:
        snapshots = self.side.load().metadata.snapshots
        self.side.engine.roll_back(snapshots[-back - 1].snapshot_id if back < len(snapshots) else -1)

    def _foreign_expire(self, keep: int) -> None:
        self.side.engine.expire(keep)

    def _expire(self, grace_periods: int) -> Any:
        return self.side.expire(after=grace_periods * LATER)

    def _accept(self, _: int) -> None:
        self.side.committer.accept("q")


def test_any_history_goes_the_same_way_in_memory_and_on_disk(tmp_path: Path) -> None:
    """Histories of stale attempts, other engines, rollbacks and expiry, compared after each step."""
    numbers = iter(range(10**6))
    config = CatalogConfig.of(None, {}, str(tmp_path))

    @settings(max_examples=10, derandomize=True, deadline=None, database=None)
    @given(st.lists(STEPS, min_size=8, max_size=8))
    def play(steps: list[tuple[str, int]]) -> None:
        simulated = History(simulated_side(is_remote=False))
        real = History(real_side("embedded", config, f"t{next(numbers)}"))
        for step in [*BEGINNING, *steps]:
            assert simulated.take(step) == real.take(step), step
            assert simulated.look() == real.look(), step

    play()
