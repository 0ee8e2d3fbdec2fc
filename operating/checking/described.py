"""What a query will be, from its writer or from its format and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...committers.errors import ConfigurationError, shown
from ...datasource.changes.value_columns import value_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OUTPUT_MODES = ("append", "complete", "update")
UNSUPPORTED_TRIGGERS = ("continuous", "realTime")
"""Those for which Spark does not call Python sinks."""


@dataclass(frozen=True, slots=True)
class DescribedQuery:
    """A query before its start."""

    format: str
    options: Mapping[str, str] = field(repr=False)
    schema: StructType | pa.Schema | None = None
    """Of its rows; None: not known."""
    output_mode: str = "append"
    trigger: str = ""
    """One of `UNSUPPORTED_TRIGGERS`; empty for others."""
    spark: Any = None
    """The session of the writer; None without one."""

    @property
    def overwrite(self) -> bool:
        return self.output_mode == "complete"

    def rows(self, *, variants: bool) -> pa.Schema | None:
        """Return the columns of the rows as the tasks get them.

        Raises:
            SchemaMismatchError: a type of Spark is refused.
        """
        if self.schema is None or isinstance(self.schema, pa.Schema):
            return self.schema
        from ...datasource.spark.types import arrow_schema

        return arrow_schema(self.schema, variants=variants)


def described(
    query: Any, options: Mapping[str, object], schema: Any = None, output_mode: str | None = None
) -> DescribedQuery:
    """
    Args:
        query: a `DataStreamWriter` of classic Spark or of Spark Connect, or the name of a format
        options: in addition to those of the writer
        schema: a `StructType`, a schema of Arrow, a DataFrame, or columns as in SQL

    Raises:
        ConfigurationError: it is none of these.
    """
    texts = {name: _text(value) for name, value in options.items() if value is not None}
    if isinstance(query, str):
        mode = output_mode or "append"
        if mode not in OUTPUT_MODES:
            raise ConfigurationError(
                f"The output mode {shown(mode)} must be one of {', '.join(OUTPUT_MODES)}."
            )
        return DescribedQuery(query.strip(), texts, parsed_schema(schema), mode)
    found = _of_connect(query) if hasattr(query, "_write_proto") else _of_classic(query)
    own = {name.lower() for name in texts}
    kept = {name: text for name, text in found.options.items() if name.lower() not in own}
    return DescribedQuery(
        found.format,
        {**kept, **texts},
        found.schema if schema is None else parsed_schema(schema),
        (output_mode or found.output_mode).lower(),
        found.trigger,
        found.spark,
    )


def parsed_schema(given: Any) -> StructType | pa.Schema | None:
    """
    Raises:
        ConfigurationError: it is no schema.
    """
    if given is None or isinstance(given, pa.Schema):
        return given
    if isinstance(given, str):
        return _of_text(given)
    struct = getattr(given, "schema", given)
    if type(struct).__name__ == "StructType":
        found: StructType = struct
        return found
    raise ConfigurationError(
        f"The schema is {type(given).__name__}. Give a StructType, a DataFrame, a schema of Arrow, or "
        "columns as in SQL, such as 'id BIGINT, name STRING'."
    )


def _of_text(text: str) -> StructType | pa.Schema:
    """Parse columns as in SQL, or the JSON of a `StructType`. Needs no JVM."""
    if text.lstrip().startswith("{"):
        import json

        from pyspark.sql.types import StructType

        try:
            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"The schema is not the JSON of a StructType: {error!r}.") from None
    try:
        return value_columns(text)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("valueColumns=", "schema=", 1)) from None


def _of_connect(writer: Any) -> DescribedQuery:
    plan = writer._write_proto
    options = dict(plan.options)
    if plan.query_name:
        options["queryName"] = plan.query_name
    from pyspark.sql.connect.dataframe import DataFrame

    rows = DataFrame(writer._write_stream._child, writer._session)
    trigger = "continuous" if plan.WhichOneof("trigger") == "continuous_checkpoint_interval" else ""
    mode = plan.output_mode or "append"
    return DescribedQuery(plan.format, options, rows.schema, mode.lower(), trigger, writer._session)


def _of_classic(writer: Any) -> DescribedQuery:
    """Read the fields of Spark's own writer, which has no methods for them."""
    rows = getattr(writer, "_df", None)
    java = getattr(writer, "_jwrite", None)
    if rows is None or java is None:
        raise ConfigurationError(
            f"penstock.check() was called with {type(writer).__name__}. Give a DataStreamWriter, such as "
            'df.writeStream.format("penstock.delta").option(...), or the name of a format with its options.'
        )
    try:
        pairs = _field(java, "extraOptions").toSeq()
        options = {str(pair._1()): str(pair._2()) for pair in map(pairs.apply, range(pairs.size()))}
        mode = _field(java, "outputMode").toString()
        source, trigger = _field(java, "source"), str(_field(java, "trigger"))
    except Exception as error:
        raise ConfigurationError(
            "This version of Spark does not tell the options of a writer. Call penstock.check(format, "
            f"options, schema=df.schema) instead. ({type(error).__name__})"
        ) from error
    unsupported = [one for one in UNSUPPORTED_TRIGGERS if trigger.lower().startswith(one.lower())]
    return DescribedQuery(
        str(source),
        options,
        rows.schema,
        str(mode).lower(),
        unsupported[0] if unsupported else "",
        rows.sparkSession,
    )


def _field(java: Any, name: str) -> Any:
    found = java.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(java)


def _text(value: object) -> str:
    """Return the value of an option as Spark's writers do."""
    return str(value).lower() if isinstance(value, bool) else str(value)
