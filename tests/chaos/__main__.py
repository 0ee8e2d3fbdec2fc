"""`python -m tests.chaos --minutes 60`: kill, pause, starve and cut off streams, and check their rows.

Each trial is a stream into another table format or service, environment and store. The same seed plans the
same faults; the instruction that they hit depends on the machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from servers.started import Servers
from tests.chaos.campaign import FAULTS_IN_TRIAL, Campaign
from tests.chaos.deployments import ENVIRONMENTS, FORMATS, STORES, Setup, all_setups, why_unavailable
from tests.chaos.disks import unmount_leftovers, why_no_permissions
from tests.chaos.report import Report

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "chaos"

say = partial(print, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="default: a random one")
    parser.add_argument(
        "--lakes", default=",".join(FORMATS), help="formats of tables, and services; separated by commas"
    )
    parser.add_argument("--stores", default=",".join(STORES), help="manifest stores, separated by commas")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help="separated by commas")
    parser.add_argument("--faults", type=int, default=FAULTS_IN_TRIAL, help="how many a trial has at most")
    parser.add_argument("--trial", type=int, help="number of the only trial to run")
    given = parser.parse_args()
    chosen = (given.lakes, given.stores, given.environments)
    setups = all_setups(*(names.split(",") for names in chosen))
    if not setups:
        parser.error("no setup has these lakes, stores and environments")
    signal.signal(signal.SIGTERM, _stop)
    names = ("lakes", "stores", "environments", "faults")
    more = [
        (name, getattr(given, name)) for name in names if getattr(given, name) != parser.get_default(name)
    ]
    arguments = " ".join(f"--{name} '{value}'" for name, value in more)
    command = f"make chaos MINUTES={given.minutes:g} SEED={given.seed}"
    command += f' ARGS="{arguments}"' if arguments else ""
    say(command)
    unmount_leftovers(OUTPUT)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    began = time.monotonic()
    try:
        with Servers(OUTPUT) as servers:
            possible, skipped = _possible(setups, servers)
            for reason in skipped:
                say(f"skipped: {reason}")
            campaign = Campaign(given.seed, OUTPUT, servers, say, given.faults)
            results = campaign.run(possible, began + 60 * given.minutes, given.trial)
    except KeyboardInterrupt:
        say("Stopped. No process is left running.")
        return 130
    report = Report(given.seed, command, time.monotonic() - began, results, skipped)
    report.write(OUTPUT)
    say(f"\n{report.markdown()}\nReport and files of failed trials: {OUTPUT}")
    return 0 if report.is_good else 1


def _possible(setups: Sequence[Setup], servers: Servers) -> tuple[list[Setup], list[str]]:
    """Return the setups that this machine offers, and why other setups and some faults are left out."""
    reasons = {setup: why_unavailable(setup, servers) for setup in setups}
    skipped = sorted({f"{setup.environment}: {reason}" for setup, reason in reasons.items() if reason})
    if reason := why_no_permissions():
        skipped.append(f"revoked permissions: {reason}")
    return [setup for setup, reason in reasons.items() if reason is None], skipped


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
