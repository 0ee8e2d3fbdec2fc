"""What a fault of the campaign is.

`happen` does it, undoes what does not end by itself, and says in words what was done. Whether the stream
then goes on is for the life to see. What turns out not to be possible at that moment is `NotNow`: it does not
count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from tests.chaos.places import Place

if TYPE_CHECKING:
    from tests.chaos.life import Life

Kind = Literal["kill", "pause", "disk", "permission", "connection"]


class NotNow(Exception):  # noqa: N818 - not an error: the fault does not apply at this moment
    """There was nothing to hit, or the stream did not notice."""


class Fault(ABC):
    """One kind of fault."""

    kind: ClassVar[Kind]
    ends_driver: ClassVar[bool] = False
    """True if the next driver goes on."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    def applies_to(self, place: Place) -> bool:
        return True

    @abstractmethod
    def happen(self, life: Life) -> str: ...
