"""Two processes that commit the same manifests to one Lance table at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from penstock.committers.contract import Conflict, Manifest
from penstock.committers.lance.committer import LanceTableCommitter

TIMEOUT_S = 60


def race(uri: str, options: Mapping[str, str], manifests: Sequence[Manifest]) -> None:
    """Commit all manifests in order, in two processes that begin each of them together."""
    context = get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (uri, dict(options), list(manifests), barrier)
    racers = [context.Process(target=commit_all, args=arguments) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(TIMEOUT_S)
        assert racer.exitcode == 0


def commit_all(uri: str, options: Mapping[str, str], manifests: Sequence[Manifest], barrier: Barrier) -> None:
    for manifest in manifests:
        barrier.wait(TIMEOUT_S)
        while isinstance(LanceTableCommitter(uri, options).commit(manifest), Conflict):
            pass
