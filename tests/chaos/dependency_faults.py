"""What a driver depends on fails: disks get full, permissions are revoked, connections are lost."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from servers.lossy_proxy import Fault as RequestFault
from tests.chaos import disks
from tests.chaos.deployments import OBJECT_STORES, Environment, Setup
from tests.chaos.fault import Fault, NotApplicable

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

FAULT_S_MAX = 20.0
"""How long a full disk or a lost permission stays, if the driver does not run into it earlier."""
PARKED_S = 20.0
"""A refused batch is tried five times: after 1, 2, 4 and 8 seconds at most."""


@dataclass(frozen=True)
class FillDisk(Fault, kind="disk", name="fill the {what}'s disk"):
    """Not a byte is free on one of the file systems, until the driver has failed by it."""

    what: Literal["table", "checkpoint"]

    def applies_to(self, setup: Setup) -> bool:
        return setup.environment == "small disks"

    def inject(self, trial: Trial) -> str:
        trial.wait_briefly()
        with disks.full(trial.deployment.disks[self.what]):
            seen = _wait_for_failure(trial, r"[Nn]o space left|disk is full|disk I/O error|os error 28")
        return f"the {self.what}'s disk was full {seen}"


@dataclass(frozen=True)
class RevokePermission(Fault, kind="permission", name="no permission to write the {what}"):
    """A folder is read-only, with all in it, until the driver has failed by it."""

    what: Literal["table", "table's log", "checkpoint"]

    def applies_to(self, setup: Setup) -> bool:
        if disks.why_no_permissions():
            return False
        return self.what == "checkpoint" or setup.environment not in OBJECT_STORES

    def inject(self, trial: Trial) -> str:
        folder = trial.deployment.folders[self.what]
        if not folder.exists():
            raise NotApplicable(f"{folder} is not there yet")
        trial.wait_briefly()
        with disks.read_only(folder):
            seen = _wait_for_failure(
                trial,
                r"[Pp]ermission denied|os error 13|Errno 13|readonly database|unable to open database|mkdir",
            )
        return f"the {self.what} was read-only {seen}"


def _wait_for_failure(trial: Trial, pattern: str) -> str:
    """Until the query, or its delivery, has failed with this error once, and a little longer."""
    before, said = len(trial.failures()), len(trial.deliveries.log_errors())
    began = time.monotonic()

    def errors() -> list[str]:
        new = [*trial.failures()[before:], *trial.deliveries.log_errors()[said:]]
        return [found[0] for error in new if (found := re.search(pattern, error))]

    noticed = trial.wait_until(lambda: bool(errors()) or not trial.driver.is_running(), FAULT_S_MAX)
    if noticed:
        trial.wait_until(lambda: False, _duration_s(trial))
    seconds = time.monotonic() - began
    if not errors():
        failed = len(trial.failures()) - before
        raise NotApplicable(f"in {seconds:.0f} s the query did not fail by it ({failed} other failures)")
    failed, has_logged = len(trial.failures()) - before, len(trial.deliveries.log_errors()) > said
    also = ", deliveries failed" if has_logged else ""
    return f"for {seconds:.1f} s, the query failed {failed} times{also}: {errors()[0]}"


def _duration_s(trial: Trial) -> float:
    """Of a decoupled stream also for longer than its deliveries may be refused before they are parked."""
    if trial.deployment.setup.is_decoupled and trial.rng.random() < 0.4:
        return PARKED_S
    return trial.rng.uniform(0, 2)


# Connections ------------------------------------------------------------------------------------------

_BEHIND_A_SERVER: tuple[Environment, ...] = (*OBJECT_STORES, "REST catalog")

_COMMIT_REQUEST: Mapping[str, str] = {
    **dict.fromkeys(OBJECT_STORES, "PUT /_delta_log/"),
    "REST catalog": "POST /v1/namespaces/ /tables/",
}
"""Words of the first line of the request that is the commit."""


@dataclass(frozen=True)
class Outage(Fault, kind="connection"):
    """No request to the object store or the catalog gets through, or no answer comes back, for a while."""

    how: RequestFault

    @property
    def name(self) -> str:
        return f"outage: every {self.how}" if self.how.endswith("lost") else f"outage: all {self.how}"

    def applies_to(self, setup: Setup) -> bool:
        return setup.environment in _BEHIND_A_SERVER

    def inject(self, trial: Trial) -> str:
        assert trial.deployment.server is not None
        proxy = trial.deployment.server.proxy
        trial.wait_briefly()
        seconds = trial.rng.choice((1.0, 1.0, 3.0, 12.0))
        proxy.spend(*[self.how] * 10_000)
        try:
            time.sleep(seconds)
            hit = len(proxy.spent())
        finally:
            proxy.spend()
        if not hit:
            raise NotApplicable(f"no request was sent in {seconds:.0f} s")
        return f"{self.how}: {hit} requests in {seconds:.0f} s"


@dataclass(frozen=True)
class CommitRequestHit(Fault, kind="connection", name="commit request: {how}"):
    """The next requests that are a table commit."""

    how: RequestFault

    def applies_to(self, setup: Setup) -> bool:
        return setup.environment in _BEHIND_A_SERVER

    def inject(self, trial: Trial) -> str:
        assert trial.deployment.server is not None
        proxy = trial.deployment.server.proxy
        times = trial.rng.choice((1, 1, 2, 4))
        proxy.spend(*[self.how] * times, on=_COMMIT_REQUEST[trial.deployment.setup.environment])
        try:
            trial.wait_until(lambda: len(proxy.spent()) >= times, 20)
            hit = len(proxy.spent())
        finally:
            proxy.spend()
        if not hit:
            raise NotApplicable("no commit was sent in 20 s")
        return f"{hit} commit requests: {self.how}"
