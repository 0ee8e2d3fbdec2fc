"""What only tests need, from the extra `testing`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..committers.errors import ConfigurationError


def load(module: str) -> Any:
    """The module, imported now.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or module) from None


def not_installed(package: str) -> ConfigurationError:
    return ConfigurationError(
        f"penstock.testing needs the package {package}, which is not installed. Type:\n"
        "    pip install 'penstock[testing]'"
    )
