"""What a driver depends on fails: disks get full, permissions are revoked, connections are lost."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from servers.lossy_proxy import Fault as RequestFault
from tests.chaos import disks
from tests.chaos.fault import Fault, Kind, NotNow
from tests.chaos.places import OBJECT_STORES, Environment, Place

if TYPE_CHECKING:
    from tests.chaos.life import Life

BITE_S_MAX = 20.0
"""How long a full disk or a lost permission stays, if the driver does not run into it earlier."""
PARKED_S = 20.0
"""A refused batch is tried five times: after 1, 2, 4 and 8 seconds at most."""


@dataclass(frozen=True)
class FillDisk(Fault):
    """Not a byte is free on one of the file systems, until the driver has failed by it."""

    what: Literal["table", "checkpoint"]
    kind: ClassVar[Kind] = "disk"

    @property
    def name(self) -> str:
        return f"fill the {self.what}'s disk"

    def applies_to(self, place: Place) -> bool:
        return place.environment == "small disks"

    def happen(self, life: Life) -> str:
        life.wait_a_moment()
        with disks.full(life.site.disks[self.what]):
            seen = _wait_for_failure(life, r"[Nn]o space left|disk is full|disk I/O error|os error 28")
        return f"the {self.what}'s disk was full {seen}"


@dataclass(frozen=True)
class RevokePermission(Fault):
    """A folder is read-only, with all in it, until the driver has failed by it."""

    what: Literal["table", "table's log", "checkpoint"]
    kind: ClassVar[Kind] = "permission"

    @property
    def name(self) -> str:
        return f"no permission to write the {self.what}"

    def applies_to(self, place: Place) -> bool:
        if disks.why_no_permissions():
            return False
        return self.what == "checkpoint" or place.environment not in OBJECT_STORES

    def happen(self, life: Life) -> str:
        folder = life.site.folders[self.what]
        if not folder.exists():
            raise NotNow(f"{folder} is not there yet")
        life.wait_a_moment()
        with disks.read_only(folder):
            seen = _wait_for_failure(
                life,
                r"[Pp]ermission denied|os error 13|Errno 13|readonly database|unable to open database|mkdir",
            )
        return f"the {self.what} was read-only {seen}"


def _wait_for_failure(life: Life, pattern: str) -> str:
    """Until the query, or its delivery, has failed with this error once, and a little longer."""
    before, said = len(life.failures()), len(life.deliveries.complaints())
    began = time.monotonic()

    def errors() -> list[str]:
        new = [*life.failures()[before:], *life.deliveries.complaints()[said:]]
        return [found[0] for error in new if (found := re.search(pattern, error))]

    noticed = life.wait_until(lambda: bool(errors()) or not life.driver.is_running(), BITE_S_MAX)
    if noticed:
        life.wait_until(lambda: False, _stay_s(life))
    seconds = time.monotonic() - began
    if not errors():
        failed = len(life.failures()) - before
        raise NotNow(f"in {seconds:.0f} s the query did not fail by it ({failed} other failures)")
    failed, has_complained = len(life.failures()) - before, len(life.deliveries.complaints()) > said
    also = ", deliveries failed" if has_complained else ""
    return f"for {seconds:.1f} s, the query failed {failed} times{also}: {errors()[0]}"


def _stay_s(life: Life) -> float:
    """Of a decoupled stream also for longer than its deliveries may be refused before they are parked."""
    if life.site.place.is_decoupled and life.rng.random() < 0.4:
        return PARKED_S
    return life.rng.uniform(0, 2)


# Connections ------------------------------------------------------------------------------------------

_BEHIND_A_SERVER: tuple[Environment, ...] = (*OBJECT_STORES, "REST catalog")

_COMMIT_REQUEST: Mapping[str, str] = {
    **dict.fromkeys(OBJECT_STORES, "PUT /_delta_log/"),
    "REST catalog": "POST /v1/namespaces/ /tables/",
}
"""Words of the first line of the request that is the commit."""


@dataclass(frozen=True)
class Outage(Fault):
    """No request to the object store or the catalog gets through, or no answer comes back, for a while."""

    how: RequestFault
    kind: ClassVar[Kind] = "connection"

    @property
    def name(self) -> str:
        return f"outage: every {self.how}" if self.how.endswith("lost") else f"outage: all {self.how}"

    def applies_to(self, place: Place) -> bool:
        return place.environment in _BEHIND_A_SERVER

    def happen(self, life: Life) -> str:
        assert life.site.server is not None
        proxy = life.site.server.proxy
        life.wait_a_moment()
        seconds = life.rng.choice((1.0, 1.0, 3.0, 12.0))
        proxy.spend(*[self.how] * 10_000)
        try:
            time.sleep(seconds)
            hit = len(proxy.spent())
        finally:
            proxy.spend()
        if not hit:
            raise NotNow(f"no request was sent in {seconds:.0f} s")
        return f"{self.how}: {hit} requests in {seconds:.0f} s"


@dataclass(frozen=True)
class CommitRequestHit(Fault):
    """The next requests that are a table commit."""

    how: RequestFault
    kind: ClassVar[Kind] = "connection"

    @property
    def name(self) -> str:
        return f"commit request: {self.how}"

    def applies_to(self, place: Place) -> bool:
        return place.environment in _BEHIND_A_SERVER

    def happen(self, life: Life) -> str:
        assert life.site.server is not None
        proxy = life.site.server.proxy
        times = life.rng.choice((1, 1, 2, 4))
        proxy.spend(*[self.how] * times, on=_COMMIT_REQUEST[life.site.place.environment])
        try:
            life.wait_until(lambda: len(proxy.spent()) >= times, 20)
            hit = len(proxy.spent())
        finally:
            proxy.spend()
        if not hit:
            raise NotNow("no commit was sent in 20 s")
        return f"{hit} commit requests: {self.how}"
