"""Collects findings, while parts of a check run in threads of their own with a limit of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...committers.errors import ConfigurationError, PenstockError
from ...committers.texts.secrets import Secrets, names_a_secret
from ..findings import Finding, Severity

_THREAD = "penstock-check"
"""Name of the threads of checks."""


@dataclass(slots=True)
class Report:
    """The findings so far. Threads may share it."""

    secrets: Secrets
    """Masked in all texts."""
    _findings: list[Finding] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Report:
        """Return an empty report that does not show what may be secret in the options of a query."""
        return cls(Secrets.of([text for name, text in options.items() if names_a_secret(name)]))

    def add(
        self, severity: Severity, subject: str, message: str, remedy: str = "", *, target: str = ""
    ) -> None:
        text, todo = self.secrets.message(message), self.secrets.message(remedy)
        with self._lock:
            self._findings.append(Finding(severity, subject, target, text, todo))

    def ok(self, subject: str, message: str, *, target: str = "") -> None:
        self.add(Severity.OK, subject, message, target=target)

    def skip(self, subject: str, message: str, *, target: str = "") -> None:
        self.add(Severity.SKIPPED, subject, message, target=target)

    def fail(self, subject: str, error: BaseException, *, target: str = "") -> None:
        """Add the error with which the query would end."""
        if isinstance(error.__cause__, ImportError) and isinstance(error, ConfigurationError):
            subject = "extras"
        if isinstance(error, PenstockError):
            self.add(Severity.ERROR, subject, str(error), target=target)  # the message says what to do
            return
        self.add(
            Severity.ERROR,
            subject,
            f"{type(error).__name__}: {error}.",
            "Check the options, and that what they name can be reached.",
            target=target,
        )

    @contextmanager
    def step(self, subject: str, *, target: str = "") -> Iterator[None]:
        """Turn an error of the block into a finding: the other parts of the check go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  libraries raise errors of any type
            self.fail(subject, error, target=target)

    @property
    def has_errors(self) -> bool:
        with self._lock:
            return any(one.severity is Severity.ERROR for one in self._findings)

    def findings(self) -> list[Finding]:
        with self._lock:
            return list(self._findings)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a check that waits for others: a server, a storage, a database."""

    subject: str
    target: str
    place: str
    """Its address, without secrets."""
    run: Callable[[Report], None]


def run_parts(parts: list[Part], report: Report, wait_s: float) -> None:
    """Run the parts at the same time, and add their findings in the order of the parts.

    One that takes longer is an error, with what it has found until then. Its thread ends with the process.
    """
    began = time.monotonic()
    running = []
    for part in parts:
        own = Report(report.secrets)
        thread = threading.Thread(target=_run, args=(part, own), name=_THREAD, daemon=True)
        thread.start()
        running.append((part, own, thread))
    for part, own, thread in running:
        thread.join(max(0.0, began + wait_s - time.monotonic()))
        found = own.findings()
        for one in found:
            report.add(one.severity, one.subject, one.message, one.remedy, target=part.target)
        if thread.is_alive():
            report.add(
                Severity.ERROR,
                part.subject,
                f"{part.place} gave no answer in {wait_s:g} seconds.",
                "Check the addresses in the options, and that a server answers there.",
                target=part.target,
            )


def is_any_waiting() -> bool:
    """Return True if a part of a check in this process still waits for an answer."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def _run(part: Part, report: Report) -> None:
    with report.step(part.subject, target=part.target):
        part.run(report)
