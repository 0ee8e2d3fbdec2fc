"""Claims: which instant may commit a batch.

Hudi has no compare-and-set on the state of a table: two drivers with different files of one batch would both
complete their instants. So a commit first creates the claim of its (query, batch), and only one of them can.
A claim names an instant; if that is completed, the claim is the query's token. It is found without reading
the timeline, also after Hudi has archived the commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from ..contract import Batch, Token
from .commit_metadata import extra_metadata, token_in
from .names import CLAIMS, claims_folder
from .storage import HudiStorage
from .timeline import Timeline, completed

TAKE_OVER_AFTER = timedelta(minutes=10)
"""Age at which a claim of other files for the same batch counts as abandoned."""

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
    """The instant was completed. Without this, a data file in its place proves it after the archival."""
    origins: tuple[str, ...] = ()

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
        self, batch: Batch, instant: str, witness: str, origins: Sequence[str], now: datetime
    ) -> Claim | None:
        """Claim the batch for an instant, or find that it is claimed for it; None if another instant has it.

        Args:
            witness: a data file of the commit
            now: in UTC
        """
        number = 0
        for newest in self.all():
            if newest.batch_id == batch.batch_id:
                if newest.instant == instant:
                    return newest
                if now - newest.claimed_at < TAKE_OVER_AFTER:
                    return None
                number = newest.number + 1
                break
        path = f"{self._folder}/{batch.batch_id:019d}.{number}"
        claim = Claim(
            path, batch.batch_id, number, instant, batch.digest, now, witness, origins=tuple(origins)
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
        return next((one for one in self.all() if self.is_committed(one, timeline)), None)

    def is_committed(self, claim: Claim, timeline: Timeline) -> bool:
        if timeline.has(claim.instant):
            return claim.is_done or self._is_own(claim)
        return timeline.is_archived(claim.instant) and (claim.is_done or self._storage.exists(claim.witness))

    def _is_own(self, claim: Claim) -> bool:
        """Return False if another writer has completed the same instant."""
        found = token_in(extra_metadata(self._storage.read(completed(claim.instant)) or b""))
        return found is not None and (found.query_id, found.token) == (self._query_id, claim.token)

    def _read(self, name: str) -> Claim | None:
        match = _NAME.fullmatch(name)
        path = f"{self._folder}/{name}"
        content = self._storage.read(path) if match is not None else None
        if match is None or content is None:
            return None
        fields = json.loads(content)
        return Claim(
            path=path,
            batch_id=int(match["batch_id"]),
            number=int(match["number"]),
            instant=fields["instant"],
            digest=fields["digest"],
            claimed_at=datetime.fromisoformat(fields["claimed_at"]).astimezone(timezone.utc),
            witness=fields["witness"],
            is_done=fields["is_done"],
            origins=tuple(fields["origins"]),
        )


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
    }
    return json.dumps(fields).encode()
