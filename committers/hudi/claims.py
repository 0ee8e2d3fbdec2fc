"""Claims: which instant may commit a batch.

Hudi has no compare-and-set on the state of a table: two drivers with different files of one batch would both
complete their instants. So a commit first creates the claim of its (query, batch), and only one of them can.
A claim names an instant; if that is completed, the claim is the query's token. It is found without reading
the commits, also after Hudi has archived them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from ..contract import Batch, Token
from ..errors import TableChangedError
from .archive import has_entry
from .commit_metadata import extra_metadata, token_in, token_json_start
from .names import CLAIMS, claims_folder
from .storage import HudiStorage
from .timeline import Timeline

TAKE_OVER_AFTER = timedelta(minutes=10)
"""Age at which a claim of other files for the same batch counts as abandoned."""

_INSTANT = re.compile(r"[0-9]{14,17}")
_NAME = re.compile(r"(?P<batch_id>[0-9]{1,19})\.(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Claim:
    path: str
    batch_id: int
    number: int
    """Increases if another run takes the batch over."""
    instant: str
    digest: str
    claimed_at: datetime
    witness: str = ""
    """A data file of the commit."""
    is_done: bool = False
    """The instant was completed. Without this, the archive shows it after the archival."""
    origins: tuple[str, ...] = ()
    planned: str = ""
    """Of changes: the instant that the batch was planned with. The commit may have a later one."""

    @property
    def token(self) -> Token:
        return Token(self.batch_id, self.digest)


class Claims:
    """The claims of one query."""

    def __init__(self, storage: HudiStorage, query_id: str) -> None:
        self._storage = storage
        self._query_id = query_id
        self._folder = claims_folder(query_id)

    def all(self) -> list[Claim]:
        """Return all claims, the newest first."""
        found = [self._read(name) for name in self._storage.names(self._folder)]
        return sorted((one for one in found if one is not None), key=lambda one: (-one.batch_id, -one.number))

    def claim(
        self,
        batches: Sequence[Batch],
        instant: str,
        witness: str,
        origins: Sequence[str],
        now: datetime,
        planned: str = "",
    ) -> Claim | None:
        """Claim these batches for an instant, or find that they are claimed for it; None if another instant
        has one of them.

        Args:
            batches: the batches of one commit, oldest first; the claim has the id of the last one
            witness: a data file of the commit
            now: in UTC
            planned: see `Claim`; a claim of an earlier attempt with the same files has the same
        """
        batch, number = batches[-1], 0
        since = [claim for claim in self.all() if claim.batch_id >= batches[0].batch_id]
        others = [one for one in since if one.instant != instant and not (planned and one.planned == planned)]
        if any(now - one.claimed_at < TAKE_OVER_AFTER for one in others):
            return None
        newest = next((claim for claim in since if claim.batch_id == batch.batch_id), None)
        if newest is not None:
            if newest.instant == instant:
                return newest
            number = newest.number + 1
        path = f"{self._folder}/{batch.batch_id:019d}.{number}"
        claim = Claim(
            path,
            batch.batch_id,
            number,
            instant,
            batch.digest,
            now,
            witness,
            origins=tuple(origins),
            planned=planned,
        )
        if self._storage.create(path, _encode(claim)):
            return claim
        there = self._read(path.rpartition("/")[2])  # a faster driver, or this one: its response was lost
        return there if there is not None and there.instant == instant else None

    def mark_done(self, claim: Claim) -> None:
        if not claim.is_done:
            self._storage.replace(claim.path, _encode(replace(claim, is_done=True)))

    def move(self, claim: Claim, instant: str) -> None:
        """Let the claim name another completed instant, at an operator's request."""
        self._storage.replace(claim.path, _encode(replace(claim, instant=instant, is_done=True)))

    def release(self, claims: Iterable[Claim]) -> None:
        self._storage.delete_all([claim.path for claim in claims])

    def committed(self, timeline: Timeline) -> Claim | None:
        """Return the claim of the query's last batch in the table; None if the table has no batch of it."""
        return self.committed_of(self.all(), timeline)

    def committed_of(self, claims: Iterable[Claim], timeline: Timeline) -> Claim | None:
        """Return the first of these claims whose instant is completed."""
        return next((one for one in claims if self.is_committed(one, timeline)), None)

    def is_committed(self, claim: Claim, timeline: Timeline) -> bool:
        path = timeline.path_of(claim.instant)
        if path is None and not timeline.is_archived(claim.instant):
            return False
        if claim.is_done:
            return True
        content = None if path is None else self._storage.read(path)
        return self._is_in_archive(claim, timeline) if content is None else self._is_own(claim, content)

    def _is_own(self, claim: Claim, content: bytes) -> bool:
        """Return False if another writer has completed the same instant."""
        found = token_in(extra_metadata(content))
        return found is not None and (found.query_id, found.token) == (self._query_id, claim.token)

    def _is_in_archive(self, claim: Claim, timeline: Timeline) -> bool:
        """Return True if the archive has the commit: its token and its file.

        The file in its place is no proof, because clustering and cleaning may have replaced and deleted it.
        """
        words = [token_json_start(self._query_id, claim.token), claim.witness]
        return has_entry(self._storage, timeline.layout, claim.instant, words)

    def _read(self, name: str) -> Claim | None:
        match = _NAME.fullmatch(name)
        path = f"{self._folder}/{name}"
        content = self._storage.read(path) if match is not None else None
        if match is None or content is None:
            return None
        try:
            fields = json.loads(content)
            if not _INSTANT.fullmatch(fields["instant"]):
                raise ValueError(f"{fields['instant']!r} is no instant")
            return Claim(
                path=path,
                batch_id=int(match["batch_id"]),
                number=int(match["number"]),
                instant=fields["instant"],
                digest=str(fields["digest"]),
                claimed_at=datetime.fromisoformat(fields["claimed_at"]).astimezone(timezone.utc),
                witness=str(fields["witness"]),
                is_done=bool(fields["is_done"]),
                origins=tuple(map(str, fields["origins"])),
                planned=str(fields.get("planned", "")),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The file {path} of the Hudi table is not what Penstock has written ({error!r}). Nothing "
                "was committed. Restore it from a backup."
            ) from error


def recorded_origin(
    storage: HudiStorage, timeline: Timeline, query_id: str, origins: Sequence[str]
) -> str | None:
    """See `SupportsOrigins`."""
    if not origins:
        return None
    queries = {path.split("/")[-2] for path in storage.paths_below(CLAIMS)}
    last: dict[str, tuple[str, str]] = {}
    for query in queries:
        claim = Claims(storage, query).committed(timeline)
        if claim is not None:
            now = (claim.instant, query)
            last.update({one: max(last.get(one, now), now) for one in claim.origins})
    return next((one for one in origins if one in last and last[one][1] != query_id), None)


def _encode(claim: Claim) -> bytes:
    fields = {
        "instant": claim.instant,
        "digest": claim.digest,
        "claimed_at": claim.claimed_at.isoformat(),
        "witness": claim.witness,
        "is_done": claim.is_done,
        "origins": claim.origins,
        **({"planned": claim.planned} if claim.planned else {}),
    }
    return json.dumps(fields).encode()
