"""One scheduler for everything that happens in a simulation: actors, requests on their way, and the clock.

An actor stands for a process, or a thread of one: it runs product code as it is, in a greenlet. Wherever
that code leaves the process, to an object store, a catalog, a database, the clock, it comes to `step` or
`request`. There the scheduler decides, by one seeded random generator, who goes on: somebody else may run,
time may pass, the actor may die, its request may get lost, be sent twice, or arrive hours after the actor
gave up on it. So a seed is a history, and the same seed is the same history.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


class Crash(BaseException):
    """The process dies here: no `except Exception` sees it, and what a dead process asks for is not done."""


class UnreachableError(Exception):
    """A request or its answer got lost. Each fake turns it into the error of its library."""


@contextmanager
def as_os_error(prefix: str = "") -> Iterator[None]:
    """The error of the libraries whose files are on the other side."""
    try:
        yield
    except UnreachableError as error:
        raise OSError(f"{prefix}{error}") from error


class DiskFullError(OSError):
    """No space is left; nothing was written."""


class StuckError(Exception):
    """The simulation does not come to an end within its bound of steps."""


@dataclass
class Hazards:
    """How often what goes wrong: probabilities per step or per request, and 0 for what does not happen.

    Each seed has a selection of its own: histories in which everything happens at once hide what one fault
    alone would show.
    """

    crash: float = 0.0
    """Per step: the actor dies."""
    pause: float = 0.0
    """Per step: the actor stops for seconds up to days."""
    unsent: float = 0.0
    """Per request: it gets lost, and the caller cannot know."""
    unanswered: float = 0.0
    """Per request: it is done, its answer gets lost."""
    late: float = 0.0
    """Per request: the caller gives up while it is on its way; it is done later, or never."""
    late_prepare: float = 0.0
    """Per request to prepare a batch: the same once more, so that its files may be gone when it arrives."""
    repeated: float = 0.0
    """Per request: the transport loses the first answer, asks again, and hands on the second answer."""
    full: float = 0.0
    """Per write: the disk is full."""

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        for one in fields(self):
            setattr(self, one.name, 0.0)


@dataclass(eq=False)
class Actor:
    """Something that acts by itself, until it ends or dies."""

    name: str
    body: Callable[[], object]
    process: greenlet
    wakes_at: float = 0.0
    waits_for: Callable[[], bool] | None = None
    is_mortal: bool = True
    is_reliable: bool = False
    """No request of its own goes wrong."""
    is_dead: bool = False
    has_ended: bool = False
    error: Exception | None = None
    """What its body ended with."""


@dataclass(eq=False)
class Request:
    """A request whose sender has given up on it, on its way to a server."""

    what: str
    act: Callable[[], object]
    arrives_at: float

    @property
    def is_to_store(self) -> bool:
        """To the database of the manifests, not to the table."""
        return self.what.startswith("store: ")


class Scheduler:
    """Decides which actor runs next, and which faults happen.

    Args:
        seed: of all that is random
        is_recorded: is the timeline kept? Costs more time than all the rest
    """

    def __init__(self, seed: int, *, is_recorded: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 1_800_000_000.0
        self.hazards = Hazards()
        self.actors: list[Actor] = []
        self.in_flight: list[Request] = []
        self.steps = 0
        self.stickiness = 0.7
        """How likely the one that runs goes on at a step."""
        self.timeline: list[str] | None = [] if is_recorded else None
        self.errors: list[tuple[str, Exception]] = []
        """What actors have ended with."""
        self._is_undisturbed = False
        self._main = getcurrent()
        self._until: Callable[[], bool] = lambda: False
        self._steps_last = 0
        self._next: Actor | Request | None = None
        self._began_at = self.now
        self.current: Actor | None = None
        """The actor that runs; None outside of the simulation."""

    # What product code comes to ----------------------------------------------------------------------

    def step(self, what: str, about: object = "") -> None:
        """The boundary of a process: before this, others may act, time may pass, the caller may die.

        Outside of actors nothing happens. What a dead actor comes to is refused with its own death.
        """
        actor = self.current
        if actor is None or self._is_undisturbed:
            return
        if actor.is_dead:
            raise Crash(what)
        self.steps += 1
        self.now += self.rng.random()
        if self.timeline is not None:
            self.log(f"{what} {about}".rstrip())
        hazards, chance = self.hazards, self.rng.random()
        if actor.is_mortal and chance < hazards.crash:
            self._die(actor)
        if chance > 1 - hazards.pause:
            self.pause(actor)
        elif self.rng.random() < self.stickiness:
            return
        if not self._is_next_again(actor):
            self._main.switch()
        if actor.is_dead:
            raise Crash(what)

    def request(
        self,
        what: str,
        act: Callable[[], T],
        *,
        about: object = "",
        writes: bool = True,
        remote: bool = True,
        late: float = 0.0,
    ) -> T:
        """Ask a server to do something, which it does as a whole or not at all.

        Args:
            act: what the server does when the request arrives; it checks there what it has to check
            writes: does it change anything? If not, only the answer matters
            remote: can it arrive after its sender gave up? Not if the server is the sender's own machine
            late: how likely it does, beside `Hazards.late`

        Raises:
            UnreachableError: nobody knows whether it was done.
            DiskFullError: it was not done.
        """
        self.step(what, about)
        hazards, chance = self.hazards, self.rng.random()
        if self.current is None or self._is_undisturbed or self.current.is_reliable:
            return act()
        if chance < hazards.unsent:
            self.log(f"  {what} {about}: got lost")
            raise UnreachableError(f"{what} {about}: no connection")
        if not writes:
            return act()
        if (chance := chance - hazards.unsent) < hazards.full:
            self.log(f"  {what} {about}: the disk is full")
            raise DiskFullError(28, f"No space left on device: {what} {about}")
        if (chance := chance - hazards.full) < hazards.unanswered:
            with suppress(Exception):
                act()
            self.log(f"  {what} {about}: done, the answer got lost")
            raise UnreachableError(f"{what} {about}: no answer")
        if not remote:
            return act()
        if (chance := chance - hazards.unanswered) < hazards.repeated:
            with suppress(Exception):
                act()
            self.log(f"  {what} {about}: done, and the transport asks again")
        elif chance - hazards.repeated < hazards.late + late:
            self.in_flight.append(Request(f"{what} {about}", act, self.now + self._long_or_short()))
            self.log(f"  {what} {about}: on its way")
            raise UnreachableError(f"{what} {about}: no answer in time")
        return act()

    @contextmanager
    def reliable(self) -> Iterator[None]:
        """Inside, no request of the actor that runs goes wrong; others act meanwhile."""
        actor = self.current
        assert actor is not None, "only actors send requests"
        actor.is_reliable = True
        try:
            yield
        finally:
            actor.is_reliable = False

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, the actor that runs acts as if it took no time."""
        self._is_undisturbed = True
        try:
            yield
        finally:
            self._is_undisturbed = False

    def die(self) -> None:
        """The actor that runs dies here, if it is mortal."""
        if self.current is not None and self.current.is_mortal:
            self._die(self.current)

    def sleep(self, seconds: float) -> None:
        """Of the actor that runs."""
        if self.current is not None:
            self.current.wakes_at = self.now + seconds
            self._main.switch()
            self.step("wake up")

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until another actor has made the condition true."""
        actor = self.current
        assert actor is not None, "only actors wait"
        if not condition():
            actor.waits_for = condition
            self._main.switch()
            actor.waits_for = None
        self.step("go on")

    # Actors ------------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], object], *, is_mortal: bool = True) -> Actor:
        """Start an actor. Only an immortal one is never killed at random."""
        process = _idle.pop() if _idle else greenlet(_live_one_after_another, self._main)
        actor = Actor(name, body, process, is_mortal=is_mortal, wakes_at=self.now)
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """The process of the actor dies where it is."""
        if not actor.has_ended and not actor.is_dead:
            self.log(f"{actor.name} is killed")
            actor.is_dead = True

    def pause(self, actor: Actor) -> None:
        """The actor stops where it is, for seconds up to days."""
        actor.wakes_at = self.now + self._long_or_short()
        self.log(f"  {actor.name} pauses for {actor.wakes_at - self.now:,.0f} s")

    def log(self, what: str) -> None:
        """Into the timeline."""
        if self.timeline is not None:
            who = self.current.name if self.current is not None else ""
            self.timeline.append(f"{self.now - self._began_at:12,.1f}  {who:<14} {what}")

    def live(self, actor: Actor) -> None:
        """All that the actor does, in its greenlet."""
        try:
            if not actor.is_dead:
                actor.body()
        except Crash:
            pass
        except Exception as error:  # noqa: BLE001  whoever started it looks at it
            actor.error = error
            self.errors.append((actor.name, error))
            self.log(f"ends with {type(error).__name__}: {str(error)[:300]}")
        actor.has_ended = True

    def _die(self, actor: Actor) -> None:
        self.log("dies")
        actor.is_dead = True
        raise Crash("killed")

    def _long_or_short(self) -> float:
        return self.rng.choice((1.0, 10.0, MINUTE_S, 10 * MINUTE_S, HOUR_S, 6 * HOUR_S, 2 * DAY_S))

    # The loop ----------------------------------------------------------------------------------------

    def run(self, steps_max: int, until: Callable[[], bool] = lambda: False) -> None:
        """Let everybody act until all have ended and no request is on its way, or `until` says so.

        Raises:
            StuckError: that takes more than so many steps.
        """
        self._steps_last, self._until = self.steps + steps_max, until
        while self._next is not None or not until():
            if self.steps > self._steps_last:
                raise StuckError(f"not at an end after {self._steps_last:,} steps")
            if not self._run_one():
                return

    def _run_one(self) -> bool:
        """One actor or request; False if there is none."""
        self.steps += 1
        chosen, self._next = self._next or self._choose(), None
        if chosen is None:
            return self._advance()
        if isinstance(chosen, Actor):
            self._resume(chosen)
        else:
            self.arrive(chosen)
        return True

    def _choose(self) -> Actor | Request | None:
        now = self.now
        ready: list[Actor | Request] = [
            actor
            for actor in self.actors
            if actor.is_dead or (actor.wakes_at <= now and (actor.waits_for is None or actor.waits_for()))
        ]
        if self.in_flight:
            ready += [request for request in self.in_flight if request.arrives_at <= now]
        return ready[int(self.rng.random() * len(ready))] if ready else None

    def _is_next_again(self, actor: Actor) -> bool:
        """Does the actor that runs come next, too? More than half of them do, and need not be switched to."""
        self.current = None
        if self._until() or self.steps > self._steps_last:
            return False
        self._next = self._choose()
        if self._next is not actor:
            return False
        self._next, self.current = None, actor
        self.steps += 1
        return True

    def _advance(self) -> bool:
        """No actor is awake: time passes until one is."""
        times = [actor.wakes_at for actor in self.actors if actor.wakes_at > self.now]
        times += [request.arrives_at for request in self.in_flight]
        if times:
            self.now = min(times)
        return bool(times)

    def _resume(self, actor: Actor) -> None:
        self.current = actor
        actor.process.switch(self, actor)
        self.current = None
        if actor.has_ended:
            self.actors.remove(actor)
            _idle.append(actor.process)

    def arrive(self, request: Request) -> None:
        """A late request is done, if the server accepts it."""
        self.in_flight.remove(request)
        try:
            request.act()
            self.log(f"late: {request.what}")
        except Exception as error:  # noqa: BLE001  nobody hears the server's answer any more
            self.log(f"late: {request.what}: refused, {error}")

    def end(self) -> None:
        """End all actors, so that no greenlet is left behind."""
        while self.actors:
            self.actors[0].is_dead = True
            self._resume(self.actors[0])
        self.in_flight.clear()


_idle: list[greenlet] = []
"""Greenlets whose actors have ended. A new one would have to map memory of its own for its stack."""


def _live_one_after_another(scheduler: Scheduler, actor: Actor) -> None:
    while True:
        scheduler.live(actor)
        scheduler, actor = getcurrent().parent.switch()
