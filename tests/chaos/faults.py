"""The faults of the campaign that hit any stream: its processes and what they depend on.

A fault's `inject` makes it happen, undoes what does not end by itself, and describes what was done. The trial
then checks that the stream continues. A fault that turns out to be impossible is `NotApplicable`, and does
not count.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import psutil
from servers.lossy_proxy import Fault as HttpFault
from servers.lossy_proxy import LossyProxy
from servers.lossy_tcp import Fault as TcpFault
from servers.lossy_tcp import LossyTcp
from servers.processes import send, stopped
from tests.chaos import disks
from tests.chaos.deployments import CLUSTER, OBJECT_STORES, SERVICES, Environment, Setup
from tests.chaos.driver import Driver, Role

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

RequestFault: TypeAlias = "HttpFault | TcpFault"
Kind = Literal["kill", "pause", "disk", "permission", "connection"]
Paused = Literal["driver", "task worker", "commit worker", "Postgres", "object store", "service"]

AT_WORK_S_MAX = 30.0
"""How long a worker is watched, to hit it while it works."""
TAKE_OVER_S_MAX = 60.0
FAULT_S_MAX = 20.0
"""How long a full disk or a missing permission stays, if the driver does not fail by it earlier."""
PARKED_S = 20.0
"""A refused batch is tried five times: after 1, 2, 4 and 8 seconds at most."""


class TrialFailed(Exception):  # noqa: N818 - it ends a trial; its message has the problem
    """The invariant does not hold, or the stream did not continue."""


class NotApplicable(Exception):  # noqa: N818 - not an error: the fault is not possible at this moment
    """There was nothing to hit, or the stream did not notice."""


@dataclass(frozen=True)
class Fault:
    """One fault. Faults are equal if their names are."""

    name: str
    kind: Kind
    inject: Callable[[Trial], str] = field(compare=False)
    applies_to: Callable[[Setup], bool] = field(default=lambda _: True, compare=False)
    ends_driver: bool = False
    """True if the next driver takes over."""


# Kills ------------------------------------------------------------------------------------------------


def _kill_driver(trial: Trial) -> str:
    """SIGKILL to the driver and everything it has started, at any moment."""
    trial.wait_briefly()
    return f"killed {trial.driver.kill()} processes of driver {trial.driver.number}"


def _kill_driver_at_point(trial: Trial) -> str:
    trial.wait_for_crash_point()
    driver = trial.driver
    return f"killed {driver.kill()} processes of driver {driver.number} at {driver.point}"


def _kill_at_point(trial: Trial) -> str:
    """SIGKILL to the one process that waits at a crash point."""
    process = trial.wait_for_crash_point()
    if not send(signal.SIGKILL, [process]):
        raise NotApplicable("it has just ended")
    return f"killed process {process.pid} at {trial.driver.point}"


def _kill_part_of_driver(role: Role, trial: Trial) -> str:
    """SIGKILL to the driver's Python or to its JVM alone. The rest must end by itself."""
    trial.wait_briefly()
    driver = trial.driver
    if not send(signal.SIGKILL, driver.of_role(role)):
        raise NotApplicable(f"driver {driver.number} has no {role} any more")
    trial.start_next_driver()
    ended = "the rest ended by itself"
    if not driver.wait_for_end(30):
        ended = f"{driver.kill()} processes were left after 30 s, and killed"
    return f"killed the {role} of driver {driver.number}; {ended}"


def _kill_worker(role: Role, trial: Trial) -> str:
    """SIGKILL to one process that works for the driver, while it works."""
    trial.wait_briefly()
    victim = _any(trial, role) if role == "executor" else _at_work(trial, role)
    if not send(signal.SIGKILL, [victim]):
        raise NotApplicable(f"{role} {victim.pid} has just ended")
    return f"killed {role} {victim.pid}"


def _any(trial: Trial, role: Role) -> psutil.Process:
    found = trial.driver.of_role(role)
    if not found:
        raise NotApplicable(f"no {role} is running")
    return trial.rng.choice(found)


def _at_work(trial: Trial, role: Role) -> psutil.Process:
    """Return a process of this role that uses the processor or the disk right now."""
    deadline = time.monotonic() + AT_WORK_S_MAX
    while time.monotonic() < deadline:
        candidates = trial.driver.of_role(role)
        refresh_at = time.monotonic() + 0.5
        while candidates and time.monotonic() < refresh_at:
            for process in candidates:
                with suppress(psutil.NoSuchProcess):
                    if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        return process
            time.sleep(0.001)
        trial.keep_running()
    raise NotApplicable(f"no {role} was at work for {AT_WORK_S_MAX:.0f} s")


def _kill_postgres(trial: Trial) -> str:
    """SIGKILL to the server and all its backends; it starts again a moment later."""
    assert trial.deployment.postgres is not None
    trial.wait_briefly()
    killed = trial.deployment.postgres.kill()
    down_s = trial.rng.choice((0.0, 0.0, 1.0, 3.0))
    time.sleep(down_s)
    trial.deployment.postgres.start()
    return f"killed {killed} processes of Postgres, started it again after {down_s:.0f} s"


# Pauses -----------------------------------------------------------------------------------------------


def _pause_driver(trial: Trial) -> str:
    """SIGSTOP to the whole driver, until another one has taken over and committed; then it resumes."""
    trial.wait_briefly()
    old, failures = trial.driver, len(trial.failures())
    processes = old.stop()
    before = trial.progress.committed()
    began = time.monotonic()

    def is_locked_out() -> bool:
        return any("database is locked" in error for error in trial.failures()[failures:])

    def has_taken_over() -> bool:
        return trial.progress.committed() >= before + 2

    try:
        trial.start_next_driver(may_wait=False)
        trial.wait_until(lambda: has_taken_over() or is_locked_out(), TAKE_OVER_S_MAX)
        done = trial.progress.committed() - before
    finally:
        old.resume()
    paused = f"stopped {processes} processes of driver {old.number} for {time.monotonic() - began:.0f} s"
    end = _end_one_of_two(trial, old)
    if done >= 2:
        return f"{paused}, in which driver {trial.driver.number} committed {done} batches; {end}"
    if is_locked_out():
        return f"{paused}, in which it held the lock of the SQLite store; {end}"
    raise NotApplicable(f"{paused}; the other driver committed nothing meanwhile; {end}")


def _end_one_of_two(trial: Trial, old: Driver) -> str:
    """Wait until one of two drivers of a checkpoint is refused, by the sink or by Spark."""
    new = trial.driver
    trial.wait_until(lambda: not (old.is_running() and new.is_running()), 45)
    if not old.is_running():
        old.wait_for_end(5)
        return f"then it ended with code {old.exit_code}"
    other = "the other one also" if new.is_running() else "the other one not"
    old.kill()
    return f"then it continued, {other}, until it was killed"


def _pause(what: Paused, trial: Trial) -> str:
    """SIGSTOP to something for a while, then SIGCONT."""
    trial.wait_briefly()
    seconds = trial.rng.choice((0.5, 2.0, 6.0))
    with _stopped(what, trial):
        time.sleep(seconds)
    return f"stopped {what} for {seconds} s"


def _stopped(what: Paused, trial: Trial) -> AbstractContextManager[object]:
    if what == "Postgres":
        assert trial.deployment.postgres is not None
        return trial.deployment.postgres.stopped()
    if what == "object store" or what == "service":
        assert trial.deployment.place.server is not None
        return trial.deployment.place.server.stopped()
    found = trial.driver.processes() if what == "driver" else trial.driver.of_role(what)
    if not found:
        raise NotApplicable(f"no {what} is running")
    return stopped(found)


# Disks and permissions --------------------------------------------------------------------------------


def _fill_disk(what: str, trial: Trial) -> str:
    """No byte is free on one of the file systems, until the driver has failed by it."""
    trial.wait_briefly()
    with disks.full(trial.deployment.disks[what]):
        failure = _wait_for_failure(trial, r"[Nn]o space left|disk is full|disk I/O error|os error 28")
    return f"the {what}'s disk was full {failure}"


def _revoke_permission(what: str, trial: Trial) -> str:
    """A folder and its content are read-only, until the driver has failed by it."""
    folder = trial.deployment.folders[what]
    if not folder.exists():
        raise NotApplicable(f"{folder} does not exist yet")
    trial.wait_briefly()
    pattern = r"[Pp]ermission denied|os error 13|Errno 13|readonly database|unable to open database|mkdir"
    with disks.read_only(folder):
        failure = _wait_for_failure(trial, pattern)
    return f"the {what} was read-only {failure}"


def _wait_for_failure(trial: Trial, pattern: str) -> str:
    """Wait until the query, or its delivery, has failed with this error once, and a little longer."""
    failures, log_errors = len(trial.failures()), len(trial.deliveries.log_errors())
    began = time.monotonic()

    def errors() -> list[str]:
        new = [*trial.failures()[failures:], *trial.deliveries.log_errors()[log_errors:]]
        return [found[0] for error in new if (found := re.search(pattern, error))]

    if trial.wait_until(lambda: bool(errors()) or not trial.driver.is_running(), FAULT_S_MAX):
        # For a decoupled stream also longer than its deliveries may be refused before they are parked.
        is_long = trial.deployment.setup.is_decoupled and trial.rng.random() < 0.4
        trial.wait_until(lambda: False, PARKED_S if is_long else trial.rng.uniform(0, 2))
    seconds, failed = time.monotonic() - began, len(trial.failures()) - failures
    if not errors():
        raise NotApplicable(f"in {seconds:.0f} s the query did not fail by it ({failed} other failures)")
    also = ", deliveries failed" if len(trial.deliveries.log_errors()) > log_errors else ""
    return f"for {seconds:.1f} s, the query failed {failed} times{also}: {errors()[0]}"


# Connections ------------------------------------------------------------------------------------------

_COMMIT_REQUEST: Mapping[Environment, str | bytes] = {
    **dict.fromkeys(OBJECT_STORES, "PUT /_delta_log/"),
    "REST catalog": "POST /v1/namespaces/ /tables/",
    **{environment: harness.rows_in for environment, harness in SERVICES.items()},
}
"""Words of the first line of the request that is the commit; over TCP: bytes in the request."""


@contextmanager
def failing_requests(
    trial: Trial, how: RequestFault, times: int = 10_000, on: str | bytes = ""
) -> Iterator[LossyProxy | LossyTcp]:
    """Let the next requests fail in the table's proxy, within the block.

    Args:
        on: see `_COMMIT_REQUEST`; empty: all requests
    """
    assert trial.deployment.place.server is not None
    proxy = trial.deployment.place.server.proxy
    proxy.spend(*[how] * times, **({"on": on} if on else {}))
    try:
        yield proxy
    finally:
        trial.faulty_requests += proxy.hit()
        proxy.spend()


def _outage(how: RequestFault, trial: Trial) -> str:
    """All requests to the object store, the catalog or the service fail for a while."""
    trial.wait_briefly()
    seconds = trial.rng.choice((1.0, 1.0, 3.0, 12.0))
    with failing_requests(trial, how) as proxy:
        time.sleep(seconds)
        hit = proxy.hit()
    if not hit:
        raise NotApplicable(f"no request was sent in {seconds:.0f} s")
    return f"{how}: {hit} requests in {seconds:.0f} s"


def _fail_commits(how: RequestFault, trial: Trial) -> str:
    """The next requests that commit to the table fail."""
    times = trial.rng.choice((1, 1, 2, 4))
    words = _COMMIT_REQUEST[trial.deployment.setup.environment]
    with failing_requests(trial, how, times, words) as proxy:
        trial.wait_until(lambda: proxy.hit() >= times, 20)
        hit = proxy.hit()
    if not hit:
        raise NotApplicable("no commit was sent in 20 s")
    return f"{hit} commit requests: {how}"


# All of them ------------------------------------------------------------------------------------------


def _on_cluster(setup: Setup) -> bool:
    return setup.master == CLUSTER


def _has_postgres(setup: Setup) -> bool:
    return setup.store == "postgres"


def _in_object_store(setup: Setup) -> bool:
    return setup.environment in OBJECT_STORES


def _is_service(setup: Setup) -> bool:
    return not setup.is_table


def _on_small_disks(setup: Setup) -> bool:
    return setup.environment == "small disks"


def _can_fail(how: RequestFault) -> Callable[[Setup], bool]:
    """The proxy of TCP knows other faults than the one of HTTP."""
    return lambda setup: setup.has_server and how in get_args(TcpFault if setup.is_over_tcp else HttpFault)


def _has_permissions(setup: Setup) -> bool:
    return disks.why_no_permissions() is None


def _has_permissions_of_table(setup: Setup) -> bool:
    return _has_permissions(setup) and setup.is_table and not _in_object_store(setup)


_WORKERS: Sequence[Role] = ("task worker", "planner", "commit worker")
_PARTS: Sequence[Role] = ("Python", "JVM")
_PAUSED: Sequence[Paused] = ("driver", "task worker", "commit worker")
_OUTAGES: Mapping[RequestFault, str] = {
    "request lost": "every request lost",
    "response lost": "every response lost",
    "response cut": "all response cut",
    "answered 503": "all answered 503",
}
_FAILED_COMMITS: Sequence[RequestFault] = (
    "request lost",
    "response lost",
    "response cut",
    "response held",
    "committed, answered 503",
    "sent twice",
)

KILL_DRIVER = Fault("kill driver at any moment", "kill", _kill_driver, ends_driver=True)
KILL_DRIVER_AT_POINT = Fault("kill driver at a crash point", "kill", _kill_driver_at_point, ends_driver=True)
KILL_AT_POINT = Fault("kill worker at a crash point", "kill", _kill_at_point)
KILL_EXECUTOR = Fault("kill executor", "kill", partial(_kill_worker, "executor"), _on_cluster)

SURVIVED: Sequence[Fault] = (
    *(Fault(f"kill {role}", "kill", partial(_kill_worker, role)) for role in _WORKERS),
    KILL_EXECUTOR,
    Fault("kill Postgres", "kill", _kill_postgres, _has_postgres),
    *(Fault(f"pause {what} for seconds", "pause", partial(_pause, what)) for what in _PAUSED),
    Fault("pause Postgres for seconds", "pause", partial(_pause, "Postgres"), _has_postgres),
    Fault("pause object store for seconds", "pause", partial(_pause, "object store"), _in_object_store),
    Fault("pause service for seconds", "pause", partial(_pause, "service"), _is_service),
    *(
        Fault(f"fill the {what}'s disk", "disk", partial(_fill_disk, what), _on_small_disks)
        for what in ("table", "checkpoint")
    ),
    *(
        Fault(f"no permission to write the {what}", "permission", partial(_revoke_permission, what), applies)
        for what, applies in (
            ("table", _has_permissions_of_table),
            ("table's log", _has_permissions_of_table),
            ("checkpoint", _has_permissions),
        )
    ),
    *(
        Fault(f"outage: {what}", "connection", partial(_outage, how), _can_fail(how))
        for how, what in _OUTAGES.items()
    ),
    *(
        Fault(f"commit request: {how}", "connection", partial(_fail_commits, how), _can_fail(how))
        for how in _FAILED_COMMITS
    ),
)
"""Faults after which the driver continues, or starts its query again."""

ENDING: Sequence[Fault] = (
    KILL_DRIVER,
    *(
        Fault(f"kill only the driver's {role}", "kill", partial(_kill_part_of_driver, role), ends_driver=True)
        for role in _PARTS
    ),
    Fault("pause driver until another has taken over", "pause", _pause_driver, ends_driver=True),
)
"""Faults that end a driver, in addition to `KILL_DRIVER_AT_POINT`, which needs a crash point."""
