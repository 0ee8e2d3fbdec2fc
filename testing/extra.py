"""Packages of the extra `testing`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..committers.errors import ConfigurationError


def load(module: str) -> Any:
    """Import and return a module.

    Raises:
        ConfigurationError: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or module) from None


def not_installed(package: str) -> ConfigurationError:
    return ConfigurationError(
        f"penstock.testing needs the package {package}, which is not installed. Run:\n    pip install "
        "'penstock[testing]'"
    )
