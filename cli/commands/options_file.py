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
from ...datasource.stored.table_access import StreamAccess, TableAccess
from .options import Catalog, OptionsFile, Storage

_VARIABLES = {"storage": "PENSTOCK_STORAGE", "catalog": "PENSTOCK_CATALOG"}
_OF_STREAMS = "PENSTOCK_STREAMS"
_EXAMPLE = (
    '{"store": "postgresql+psycopg://...", "storage": {"AWS_REGION": "..."}, "catalog": {"uri": "..."}, '
    '"streams": {"flights": {"url": "postgresql://..."}}}'
)


def with_options_file(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options that say how to open store and tables.

    A command with the option --store also gets --options-file. The parameter `access` of a command becomes
    the options --storage and --catalog; its value has everything that the user has given in any way.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = dict(signature.parameters)
    if "store" not in parameters:
        return command
    takes_checkpoint = parameters["checkpoint"].default is None  # as an option, in place of the store
    added = {"options_file": OptionsFile}
    if parameters.pop("access", None) is not None:
        added = {"storage": Storage, "catalog": Catalog, **added}

    @functools.wraps(command)
    def run(**params: Any) -> None:
        own = {name: params.pop(name, None) for name in added}
        if params.get("from_stdin"):  # then all of it comes from there
            given, access = {}, TableAccess({}, {})
        else:
            _warn_of_secrets(params["store"], own)
            given = _read(Path(own["options_file"])) if own["options_file"] else {}
            access = _access(own, given)
        if not params["store"] and not (takes_checkpoint and params["checkpoint"]):
            params["store"] = given.get("store")
        command(**params, **({"access": access} if "storage" in own else {}))

    kind = inspect.Parameter.KEYWORD_ONLY
    named = [one.replace(kind=kind) for one in parameters.values()]
    named += [inspect.Parameter(name, kind, default=None, annotation=one) for name, one in added.items()]
    run.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in named}
    return run


def _access(typed: Mapping[str, Any], given: Mapping[str, Any]) -> TableAccess:
    """Return all options for tables: the command line overrides the file, and the file the environment."""
    TableAccess.parse(typed.get("storage"), typed.get("catalog"))  # its errors count what the user typed
    pairs = {}
    for name, variable in _VARIABLES.items():
        below = [*_from_environment(variable).items(), *given.get(name, {}).items()]
        pairs[name] = [*(f"{key}={value}" for key, value in below), *(typed.get(name) or ())]
    text = os.environ.get(_OF_STREAMS) or "{}"
    streams = StreamAccess.parse_all(_object(text), f"${_OF_STREAMS}")
    return TableAccess.parse(pairs["storage"], pairs["catalog"], {**streams, **given.get("streams", {})})


def _read(path: Path) -> dict[str, Any]:
    """Read the options file; its `streams` are parsed."""
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The options file {path} cannot be read: {error}.") from None
    if mode & 0o077:
        _warn(f"Other users can read the options file {path}. Run: chmod 600 {path}")
    given = _object(text)
    names = {"store", "streams", *_VARIABLES}
    if given is None or not given.keys() <= names or not _are_strings(given):
        raise ConfigurationError(f"The options file {path} must be a JSON object such as {_EXAMPLE}.")
    if not isinstance(given.get("store", ""), str):
        raise ConfigurationError(f"The store in the options file {path} must be a string.")
    return {**given, "streams": StreamAccess.parse_all(given.get("streams", {}), f"the options file {path}")}


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
    """Return True if storage and catalog are objects of strings, with keys that fit KEY=VALUE."""
    inner = [value for name, value in objects.items() if name not in ("store", "streams")]
    if not all(isinstance(one, dict) for one in inner):
        return False
    pairs = [pair for one in inner for pair in one.items()]
    return all(key.strip() and "=" not in key and isinstance(text, str) for key, text in pairs)


def _warn_of_secrets(store: str | None, typed: Mapping[str, Any]) -> None:
    from ...committers.texts.safe_text import has_credentials
    from ...committers.texts.secrets import names_a_secret

    shown = ["--store"] if has_credentials(store or "") else []
    for name in _VARIABLES:
        pairs = [pair.partition("=") for pair in typed.get(name) or ()]
        if any(names_a_secret(key) or has_credentials(value) for key, _, value in pairs):
            shown.append(f"--{name}")
    if shown:
        _warn(
            f"There is a secret in {' and '.join(shown)}, which everybody who can list the processes of this "
            "machine can read. Put it into the file of --options-file or $PENSTOCK_OPTIONS_FILE, or into "
            "$PENSTOCK_STORE, $PENSTOCK_STORAGE, $PENSTOCK_CATALOG or $PENSTOCK_STREAMS."
        )


def _warn(text: str) -> None:
    from ..output import print_line

    print_line(f"Warning: {text}", stderr=True)
