"""A job is killed at the requested point with all its child processes; otherwise there is an error."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock import ConfigurationError, testing

BATCHES = """
from penstock.committers.crash_points import reach

for batch_id in range(3):
    print(f"batch {batch_id}", flush=True)
    for point in ("write.file_open", "prepare.done", "mark.done"):
        reach(point, batch_id)
print("the end")
"""

STARTS_OTHERS = """
import subprocess, sys
from penstock.committers.crash_points import reach

orphaned = f"import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
subprocess.run([sys.executable, "-c", orphaned])
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
reach("prepare.done", 0)
"""

WATCHES_ANOTHER = """
import subprocess, sys
from penstock.committers.crash_points import reach

other = subprocess.Popen(["sleep", "600"])
watching = '''
import pathlib, psutil, sys
other = psutil.Process(int(sys.argv[1]))
print("watching", flush=True)
while other.status() != psutil.STATUS_ZOMBIE:
    pass
pathlib.Path(sys.argv[2]).touch()
'''
command = [sys.executable, "-c", watching, str(other.pid), sys.argv[1]]
subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()
reach("prepare.done", 0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., testing.Job]:
    """A job that is this Python program."""

    def of(program: str, *arguments: str, **environment: str) -> testing.Job:
        return testing.Job([sys.executable, "-c", program, *arguments], tmp_path / "job.log", environment)

    return of


def _log(tmp_path: Path) -> list[str]:
    return (tmp_path / "job.log").read_text().splitlines()


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# Killed -------------------------------------------------------------------------------------------------


def test_a_job_is_killed_at_the_first_batch_that_reaches_the_point(
    job: Callable[..., testing.Job], tmp_path: Path
) -> None:
    assert job(BATCHES).kill_at("prepare.done") == 1
    assert _log(tmp_path) == ["batch 0"]


def test_a_job_is_killed_at_the_batch_that_was_named(job: Callable[..., testing.Job], tmp_path: Path) -> None:
    job(BATCHES).kill_at("write.file_open", batch_id=2)
    assert _log(tmp_path) == ["batch 0", "batch 1", "batch 2"]


def test_a_job_runs_again_after_it_was_killed(job: Callable[..., testing.Job], tmp_path: Path) -> None:
    """To its end, and its log goes on."""
    job(BATCHES).kill_at("mark.done")
    job(BATCHES).run()
    assert _log(tmp_path) == ["batch 0", "batch 0", "batch 1", "batch 2", "the end"]


def test_all_child_processes_of_a_job_are_killed(job: Callable[..., testing.Job], tmp_path: Path) -> None:
    """Also a process whose parent has ended, and one with its own session."""
    assert job(STARTS_OTHERS).kill_at("prepare.done") == 4
    started = [int(line) for line in _log(tmp_path)]
    assert len(started) == 3
    assert not [pid for pid in started if _is_alive(pid)]


def test_a_child_with_its_own_session_that_dies_late_is_waited_for(
    job: Callable[..., testing.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not found any more once its parent has ended."""
    send = psutil.Process.send_signal
    survivors: set[int] = set()

    def send_in_vain(process: psutil.Process, number: int) -> None:
        leads_session = process.name() == "sleep" and os.getsid(process.pid) == process.pid
        if number == signal.SIGKILL and leads_session and process.pid not in survivors:
            survivors.add(process.pid)
        else:
            send(process, number)

    monkeypatch.setattr(psutil.Process, "send_signal", send_in_vain)
    job(STARTS_OTHERS).kill_at("prepare.done")
    assert len(survivors) == 1
    assert not [pid for pid in survivors if _is_alive(pid)]


def test_no_process_of_a_job_notices_the_death_of_another(
    job: Callable[..., testing.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a driver would still handle the loss of its workers: a power failure leaves no time for that."""
    send = psutil.Process.send_signal

    def send_slowly(process: psutil.Process, number: int) -> None:
        send(process, number)
        time.sleep(0.2 if number == signal.SIGKILL else 0)

    monkeypatch.setattr(psutil.Process, "send_signal", send_slowly)
    noticed = tmp_path / "noticed"
    assert job(WATCHES_ANOTHER, str(noticed)).kill_at("prepare.done") == 3
    assert not noticed.exists()


def test_a_job_can_be_killed_at_any_moment(job: Callable[..., testing.Job], tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with job(
        "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)", str(ready)
    ).start() as one:
        one.wait_for(ready, timeout_s=60)
        assert one.is_running()
        assert one.kill() == 1
        assert not one.is_running()
        assert one.kill() == 0


def test_no_process_is_left_when_the_block_ends(job: Callable[..., testing.Job], tmp_path: Path) -> None:
    """What the program leaves behind at its own end, too."""
    with job("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)").start() as one:
        assert one.wait() == 0
        (left,) = _log(tmp_path)
        assert _is_alive(int(left))
    assert not _is_alive(int(left))


def test_a_process_id_that_is_in_use_again_is_left_alone(job: Callable[..., testing.Job]) -> None:
    with job("").start() as one:
        one.wait()
        with job("import time; time.sleep(600)").start() as stranger:
            one._process.pid = stranger.pid
            assert one.kill() == 0
            assert stranger.is_running()


# Errors -------------------------------------------------------------------------------------------------


def test_a_job_that_ends_before_the_crash_point_is_an_error(job: Callable[..., testing.Job]) -> None:
    """Or a test would kill nothing, and pass."""
    with pytest.raises(AssertionError, match=r"(?s)exit code 0 before .*prepare\.done@7\..*the end"):
        job(BATCHES).kill_at("prepare.done", batch_id=7)


def test_a_job_that_does_not_reach_the_crash_point_in_time_is_an_error(
    job: Callable[..., testing.Job], tmp_path: Path
) -> None:
    """And is not left running."""
    with pytest.raises(AssertionError, match=r"(?s)recover\.done does not exist after 1 s\."):
        job("import os, time; print(os.getpid(), flush=True); time.sleep(600)").kill_at(
            "recover.done", timeout_s=1
        )
    (pid,) = _log(tmp_path)
    assert not _is_alive(int(pid))


def test_a_job_that_fails_is_an_error_with_the_end_of_its_log(job: Callable[..., testing.Job]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)exit code 1\..*ValueError: what it says"):
        job("raise ValueError('what it says')").run()


def test_a_job_that_does_not_end_is_an_error(job: Callable[..., testing.Job]) -> None:
    started = time.monotonic()
    with pytest.raises(AssertionError, match=r"did not end within 0\.5 s"):
        job("import time; time.sleep(600)").run(timeout_s=0.5)
    assert time.monotonic() - started < 60


def test_a_crash_point_that_does_not_exist_is_an_error_that_names_all(
    job: Callable[..., testing.Job],
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"crash point 'commit\.done' does not exist.*commit\.landed"
    ):
        job(BATCHES).kill_at("commit.done")


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="/nowhere/job cannot be started: No such file"):
        testing.Job(["/nowhere/job"], tmp_path / "job.log").run()


def test_a_job_has_the_environment_of_its_caller_and_what_was_given(
    job: Callable[..., testing.Job], tmp_path: Path
) -> None:
    one = job("import os; print(os.environ['PATH'], os.environ['TOKEN'])", TOKEN="secret")
    one.run()
    assert _log(tmp_path) == [f"{os.environ['PATH']} secret"]
    assert "secret" not in repr(one)
