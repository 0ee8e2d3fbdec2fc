"""Checks that a library still has the private members that Penstock overrides, calls or reads.

Private members may be renamed in any release. If an overridden method is renamed, the override is silently
never called, and for example requests lose their timeout. Runs on the driver and in the delivery process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from ..errors import ConfigurationError

_MARK = "__penstock_hook__"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def hook(method: _Function) -> _Function:
    """Mark a method that overrides a private method of a library, for `check_hooks`."""
    setattr(method, _MARK, True)
    return method


def check_hooks(hooked: type) -> None:
    """Check that each method marked with `hook` overrides a method with the same parameters.

    Raises:
        ConfigurationError: names the method that the library no longer has.
    """
    for name, method in vars(hooked).items():
        if hasattr(getattr(method, "__func__", method), _MARK):  # static methods too
            base = next((vars(one)[name] for one in hooked.__mro__[1:] if name in vars(one)), None)
            if base is None or _parameters(base) != _parameters(method):
                raise _changed(hooked.__mro__[1], name)


def check_members(owner: type, names: Collection[str]) -> None:
    """Check that the class has, or declares, members with these names.

    Raises:
        ConfigurationError: names the first missing member.
    """
    declared = {name for one in owner.__mro__ for name in inspect.get_annotations(one)}
    for name in names:
        if name not in declared and not hasattr(owner, name):
            raise _changed(owner, name)


def changed_library(library: str, what: str) -> ConfigurationError:
    """The error for a library that no longer behaves as Penstock requires."""
    return ConfigurationError(
        f"The installed version of {library} no longer has {what}, which Penstock relies on. Nothing was "
        "written. Install a version that Penstock supports: pip install --upgrade --force-reinstall penstock"
    )


def _changed(owner: type, name: str) -> ConfigurationError:
    return changed_library(
        owner.__module__.partition(".")[0], f"{owner.__qualname__}.{name} with the expected parameters"
    )


def _parameters(function: object) -> list[str]:
    assert callable(function), "hooks are methods"
    return list(inspect.signature(function).parameters)
