"""`python -m tests.chaos --minutes 60`: kill, pause, starve and cut off streams, and check their tables.

Trial after trial: each a stream into another format, environment and store. The same seed plans the same
faults; at which instruction they hit is up to the machine.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from servers.started import Servers
from tests.chaos.campaign import FAULTS_IN_TRIAL, Campaign, empty, run_until
from tests.chaos.deployments import (
    DELIVERIES,
    ENVIRONMENTS,
    FORMATS,
    STORES,
    Setup,
    all_setups,
    why_unavailable,
)
from tests.chaos.disks import why_no_permissions
from tests.chaos.report import Report, Screen

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "chaos"


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="For how long faults are made.")] = 60,
    seed: Annotated[int | None, typer.Option(help="Of all that is random. Default: another one.")] = None,
    lakes: Annotated[str, typer.Option(help="Formats of tables, with commas.")] = ",".join(FORMATS),
    stores: Annotated[str, typer.Option(help="Manifest stores, with commas.")] = ",".join(STORES),
    deliveries: Annotated[str, typer.Option(help="coupled, decoupled, or both.")] = ",".join(DELIVERIES),
    environments: Annotated[str, typer.Option(help="What tables are on, with commas.")] = ",".join(
        ENVIRONMENTS
    ),
    trial: Annotated[int | None, typer.Option(help="Live only the trial of this number.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the files of trials that went well, too.")] = False,
) -> None:
    signal.signal(signal.SIGTERM, _stop)
    seed = random.randrange(1_000_000) if seed is None else seed
    command = f"make chaos MINUTES={minutes:g} SEED={seed}"
    screen = Screen(Console())
    empty(OUTPUT)
    began = time.monotonic()
    try:
        with Servers(OUTPUT) as servers:
            campaign = Campaign(seed, OUTPUT, servers, screen, keep)
            chosen = all_setups(
                _chosen(lakes, FORMATS),
                _chosen(stores, STORES),
                _chosen(deliveries, DELIVERIES),
                _chosen(environments, ENVIRONMENTS),
            )
            setups, skipped = _possible(chosen, servers)
            screen.say(f"seed {seed}: {command}")
            for reason in skipped:
                screen.say(f"skipped: {reason}", "yellow")
            if trial is None:
                results = run_until(campaign, setups, began + 60 * minutes)
            else:
                setup = next(setup for number, setup in campaign.trials(setups) if number == trial)
                results = [campaign.run(trial, setup, lambda faults: faults >= FAULTS_IN_TRIAL)]
    except KeyboardInterrupt:
        screen.say("Stopped. No process is left running.")
        sys.exit(130)
    finally:
        screen.close()
    report = Report(seed, minutes, command, time.monotonic() - began, results, skipped)
    report.write(OUTPUT)
    screen.say("\n" + report.markdown())
    screen.say(f"written to {OUTPUT}/report.md and report.json; files of trials that failed are beside them")
    sys.exit(0 if report.is_good else 1)


def _possible(setups: Sequence[Setup], servers: Servers) -> tuple[list[Setup], list[str]]:
    """The setups that this machine can offer; and why others, and some faults, are left out."""
    reasons = {setup: why_unavailable(setup, servers) for setup in setups}
    skipped = sorted({f"{setup.environment}: {reason}" for setup, reason in reasons.items() if reason})
    if reason := why_no_permissions():
        skipped.append(f"revoked permissions: {reason}")
    return [setup for setup, reason in reasons.items() if reason is None], skipped


def _chosen(names: str, known: Sequence[str]) -> list[str]:
    chosen = [name.strip() for name in names.split(",")]
    if unknown := set(chosen) - set(known):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: none of {', '.join(known)}")
    return chosen


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
