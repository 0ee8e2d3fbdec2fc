"""A renamed method or member of a library is noticed at the start."""

from __future__ import annotations

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.committers.file_tables.library_hooks import check_hooks, check_members, hook


class Base:
    declared: int

    def _hooked(self, one: int) -> int:
        return one

    def _other_parameters(self, one: int) -> int:
        return one


class Hooked(Base):
    @hook
    def _hooked(self, one: int) -> int:
        return one + 1

    def own(self) -> None: ...


class Renamed(Base):
    @hook
    def _headers(self) -> None: ...


class StaticRenamed(Base):
    @staticmethod
    @hook
    def _headers() -> None: ...


class WithOtherParameters(Base):
    @hook
    def _other_parameters(self, one: int, two: int = 0) -> int:
        return one + two


def test_a_hook_that_overrides_a_method_holds() -> None:
    check_hooks(Hooked)


@pytest.mark.parametrize(
    ("hooked", "name"),
    [
        (Renamed, "Base._headers"),
        (StaticRenamed, "Base._headers"),
        (WithOtherParameters, "Base._other_parameters"),
    ],
)
def test_a_hook_that_overrides_nothing_is_an_error_that_names_it(hooked: type, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}.*pip install"):
        check_hooks(hooked)


def test_a_missing_member_is_an_error_that_names_it() -> None:
    check_members(Base, ("_hooked", "declared"))
    with pytest.raises(ConfigurationError, match=r"Base\._gone"):
        check_members(Base, ("_hooked", "_gone"))
