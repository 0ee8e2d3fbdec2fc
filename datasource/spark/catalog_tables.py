"""Tables in Spark's own catalog, which sources in Python cannot have: Spark 4.0 to 4.3 loses their options.

`CREATE TABLE … USING … OPTIONS (…)` asks the source once, with the options and what the catalog adds. Who
reads or writes the table later gets no option at all, and a stream with `toTable` only its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ...committers.errors import ConfigurationError

_OF_CATALOG = {"owner", "provider"}
"""What the catalog adds to the options of a table that is created."""
_OF_NO_TABLE = {"checkpointlocation"}

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def without_catalog_tables(method: MethodT) -> MethodT:
    """Let a method of a data source that Spark calls say so where it is called for a table of the catalog.

    Raises:
        ConfigurationError: the table is created; or options are missing because it was.
    """

    @wraps(method)
    def checked(source: Any, *arguments: Any, **named: Any) -> Any:
        given = {name.lower() for name in source.options}
        if given >= _OF_CATALOG:
            raise ConfigurationError(
                f"{source.name()} cannot be a table in Spark's catalog. {_advice(source)}"
            )
        try:
            return method(source, *arguments, **named)
        except ConfigurationError as error:
            if not given <= _OF_NO_TABLE:
                raise
            raise ConfigurationError(
                f"{error}\nIs it a table in Spark's catalog? {_advice(source)}"
            ) from error

    return cast("MethodT", checked)


def _advice(source: Any) -> str:
    name = source.name()
    return (
        "Spark passes the options of a table that was made with CREATE TABLE or saveAsTable to no source in "
        f"Python. Give them with .format({name!r}).option(...). In SQL, what can be read can be a view: "
        f"CREATE TEMPORARY VIEW events USING {name} OPTIONS (...), into which rows can be inserted, too."
    )
