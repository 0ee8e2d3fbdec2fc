"""Sends signals to processes that may have ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress

import psutil

_ENDED = (psutil.NoSuchProcess, psutil.ZombieProcess)


def send(number: signal.Signals, processes: Sequence[psutil.Process]) -> int:
    """Send the signal and return the number of processes that received it."""
    sent = 0
    for process in processes:
        with suppress(*_ENDED):
            process.send_signal(number)
            sent += 1
    return sent
