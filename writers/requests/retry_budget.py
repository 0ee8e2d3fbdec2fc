"""How long an entry is retried, and how long it waits before each attempt."""

from __future__ import annotations

from dataclasses import dataclass

from ...committers.errors import ConfigurationError
from .limits import OnRefusal
from .results import DeadLetter, Fatal, Retry


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Bounds of the attempts of one entry, with exponential back-off and full jitter.

    Full jitter is a wait between zero and the back-off, with equal probability (Marc Brooker, Exponential
    Backoff And Jitter, AWS Architecture Blog).

    Raises:
        ConfigurationError: raised on creation, with all problems at once.
    """

    attempts_max: int | None = None
    """Including the first one. None: only `total_s` limits them."""
    total_s: float | None = 300.0
    """Since the first attempt was sent. The last attempt is made at this time, unless the destination asks
    for a longer wait. None: only `attempts_max` limits it.
    """
    backoff_first_s: float = 0.1
    """Doubles with each attempt."""
    backoff_max_s: float = 20.0
    retry_after_max_s: float = 3600.0
    """If the destination asks for a longer wait, the entry is sent again after this one."""
    on_exhausted: OnRefusal = "fail"

    def __post_init__(self) -> None:
        problems = []
        if self.attempts_max is None and self.total_s is None:
            problems.append("attempts_max or total_s must be set: retries without an end are not allowed.")
        if self.attempts_max is not None and self.attempts_max < 1:
            problems.append(f"attempts_max must be at least 1, not {self.attempts_max}.")
        if self.total_s is not None and not self.total_s >= 0:
            problems.append(f"total_s must not be negative, but is {self.total_s}.")
        if not 0 < self.backoff_first_s <= self.backoff_max_s < float("inf"):
            problems.append(
                f"backoff_first_s ({self.backoff_first_s}) must be positive, and at most backoff_max_s "
                f"({self.backoff_max_s})."
            )
        if not 0 <= self.retry_after_max_s < float("inf"):
            problems.append(f"retry_after_max_s must not be negative, but is {self.retry_after_max_s}.")
        if self.on_exhausted not in ("fail", "dead_letter"):
            problems.append(f"on_exhausted must be 'fail' or 'dead_letter', not {self.on_exhausted!r}.")
        if problems:
            raise ConfigurationError("Retry budget:\n  - " + "\n  - ".join(problems))

    def delay_s(
        self, attempts: int, retry_after_s: float | None, draw: float, elapsed_s: float = 0.0
    ) -> float:
        """How long to wait after `attempts` attempts; at least what the destination asks for.

        Args:
            draw: random number in [0, 1)
        """
        doublings = min(attempts - 1, 1000)  # beyond, a float overflows
        backoff_s = draw * min(self.backoff_max_s, self.backoff_first_s * 2.0**doublings)
        if self.total_s is not None:
            backoff_s = min(backoff_s, max(self.total_s - elapsed_s, 0.0))
        return max(backoff_s, min(retry_after_s or 0.0, self.retry_after_max_s))

    def is_exhausted(self, attempts: int, elapsed_s: float, delay_s: float) -> bool:
        """Return True if there must be no further attempt after a wait of `delay_s`."""
        if self.attempts_max is not None and attempts >= self.attempts_max:
            return True
        if self.total_s is None:
            return False
        return elapsed_s >= self.total_s or delay_s > self.total_s - elapsed_s

    def exhausted(self, last: Retry, attempts: int, elapsed_s: float) -> DeadLetter | Fatal:
        """The result of an entry that is not retried any more."""
        message = f"Not delivered in {attempts} attempts and {elapsed_s:.1f} s."
        if last.message:
            message += f" The last answer: {last.message}"
        return (DeadLetter if self.on_exhausted == "dead_letter" else Fatal)(last.code, message)
