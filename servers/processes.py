"""Signals for processes that may have ended meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


def send(number: signal.Signals, processes: Sequence[psutil.Process]) -> int:
    """How many of them got the signal."""
    sent = 0
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(number)
            sent += 1
    return sent
