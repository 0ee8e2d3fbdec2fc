"""Two processes that commit the same manifests to one table at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from penstock.committers.contract import Conflict, Manifest
from penstock.committers.target import Committer

TIMEOUT_S = 60


def race(open_table: Callable[[], Committer], manifests: Sequence[Manifest]) -> None:
    """Commit all manifests in order, in two processes that begin each of them together.

    Args:
        open_table: is pickled
    """
    context = get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (open_table, list(manifests), barrier)
    racers = [context.Process(target=commit_all, args=arguments) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(TIMEOUT_S)
        assert racer.exitcode == 0


def commit_all(open_table: Callable[[], Committer], manifests: Sequence[Manifest], barrier: Barrier) -> None:
    for manifest in manifests:
        barrier.wait(TIMEOUT_S)
        while isinstance(open_table().commit(manifest), Conflict):
            pass
