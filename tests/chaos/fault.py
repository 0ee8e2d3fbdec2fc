"""What a fault of the campaign is.

`inject` does it, undoes what does not end by itself, and describes what was done. The trial checks whether
the stream then goes on. What turns out not to be possible then is `NotApplicable` and does not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from tests.chaos.deployments import Setup

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

Kind = Literal["kill", "pause", "disk", "permission", "connection"]


class TrialFailed(Exception):  # noqa: N818 - it ends a trial; what is wrong is its message
    """The invariant does not hold, or the stream did not heal."""


class NotApplicable(Exception):  # noqa: N818 - not an error: the fault does not apply at this moment
    """There was nothing to hit, or the stream did not notice."""


class Fault(ABC):
    """One kind of fault, as a frozen dataclass: `class KillWorker(Fault, kind="kill", name="kill {role}")`.

    Class arguments:
        name: may have fields of the fault
        ends_driver: True if the next driver goes on
    """

    kind: ClassVar[Kind]
    ends_driver: ClassVar[bool] = False
    _name: ClassVar[str] = ""

    def __init_subclass__(cls, kind: Kind | None = None, name: str = "", ends_driver: bool = False) -> None:
        if kind is not None:
            cls.kind, cls._name, cls.ends_driver = kind, name, ends_driver

    @property
    def name(self) -> str:
        return self._name.format(**vars(self))

    def applies_to(self, setup: Setup) -> bool:
        return True

    @abstractmethod
    def inject(self, trial: Trial) -> str: ...
