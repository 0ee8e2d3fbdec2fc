"""Sends signals to processes that may have ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

_ENDED = (psutil.NoSuchProcess, psutil.ZombieProcess)


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Suspend the processes with SIGSTOP during the block."""
    send(signal.SIGSTOP, processes)
    try:
        yield
    finally:
        send(signal.SIGCONT, processes)


def send(number: signal.Signals, processes: Sequence[psutil.Process]) -> int:
    """Send the signal and return the number of processes that received it."""
    sent = 0
    for process in processes:
        with suppress(*_ENDED):
            process.send_signal(number)
            sent += 1
    return sent
