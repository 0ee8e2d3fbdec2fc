"""Store, storage and catalog options from a file or the environment, to keep secrets off the command line."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...committers.errors import ConfigurationError
from ...datasource.table_access import TableAccess
from .options import OptionsFile

_VARIABLES = {"storage": "PENSTOCK_STORAGE", "catalog": "PENSTOCK_CATALOG"}
_EXAMPLE = (
    '{"store": "postgresql+psycopg://...", "storage": {"AWS_REGION": "..."}, "catalog": {"uri": "..."}}'
)


def with_options_file(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command, with the option --options-file if it has the option --store."""
    signature = inspect.signature(command, eval_str=True)
    parameters = dict(signature.parameters)
    if "store" not in parameters:
        return command

    takes_checkpoint = parameters["checkpoint"].default is None  # as an option, in place of the store

    @functools.wraps(command)
    def run(options_file: str | None = None, **params: Any) -> None:
        if not params.get("from_stdin"):  # then all of it comes from there
            _add_options(params, options_file, needs_store=not (takes_checkpoint and params["checkpoint"]))
        command(**params)

    kind = inspect.Parameter.KEYWORD_ONLY
    named = [one.replace(kind=kind) for one in parameters.values()]
    named.append(inspect.Parameter("options_file", kind, default=None, annotation=OptionsFile))
    run.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in named}
    return run


def _add_options(params: dict[str, Any], path: str | None, *, needs_store: bool) -> None:
    """Complete the parameters: the command line overrides the file, and the file the environment."""
    TableAccess.parse(params.get("storage"), params.get("catalog"))  # its errors count what the user typed
    _warn_of_secrets(params)
    given = _read(Path(path)) if path else {}
    if needs_store and not params["store"]:
        params["store"] = given.get("store")
    for name, variable in _VARIABLES.items():
        if name in params:
            pairs = [*_from_environment(variable).items(), *given.get(name, {}).items()]
            params[name] = [*(f"{key}={value}" for key, value in pairs), *(params[name] or ())]


def _read(path: Path) -> dict[str, Any]:
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The options file {path} cannot be read: {error}.") from None
    if mode & 0o077:
        _warn(f"Other users can read the options file {path}. Run: chmod 600 {path}")
    given = _object(text)
    names = {"store", *_VARIABLES}
    if given is None or not given.keys() <= names or not _are_strings(given):
        raise ConfigurationError(f"The options file {path} must be a JSON object such as {_EXAMPLE}.")
    if not isinstance(given.get("store", ""), str):
        raise ConfigurationError(f"The store in the options file {path} must be a string.")
    return given


def _from_environment(variable: str) -> dict[str, str]:
    given = _object(os.environ.get(variable) or "{}")
    if given is None or not _are_strings({"": given}):
        raise ConfigurationError(f'${variable} must be a JSON object such as {{"KEY": "VALUE"}}.')
    return given


def _object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None if it is not one. No error shows its content."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _are_strings(objects: Mapping[str, Any]) -> bool:
    """Return True if all but the store are objects of strings, with keys that fit KEY=VALUE."""
    inner = [value for name, value in objects.items() if name != "store"]
    if not all(isinstance(one, dict) for one in inner):
        return False
    pairs = [pair for one in inner for pair in one.items()]
    return all(key.strip() and "=" not in key and isinstance(text, str) for key, text in pairs)


def _warn_of_secrets(params: dict[str, Any]) -> None:
    from ...committers.safe_text import has_credentials
    from ...committers.secrets import names_a_secret

    shown = ["--store"] if has_credentials(params["store"] or "") else []
    for name in _VARIABLES:
        pairs = [pair.partition("=") for pair in params.get(name) or ()]
        if any(names_a_secret(key) or has_credentials(value) for key, _, value in pairs):
            shown.append(f"--{name}")
    if shown:
        _warn(
            f"There is a secret in {' and '.join(shown)}, which everybody who can list the processes of this "
            "machine can read. Put it into the file of --options-file or $PENSTOCK_OPTIONS_FILE, or into "
            "$PENSTOCK_STORE, $PENSTOCK_STORAGE or $PENSTOCK_CATALOG."
        )


def _warn(text: str) -> None:
    from ..output import print_line

    print_line(f"Warning: {text}", stderr=True)
