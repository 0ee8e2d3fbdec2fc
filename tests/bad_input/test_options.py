"""Any option has an effect, or is refused by an error that names it and shows no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.bad_input.tables import by_duckdb, examples, new_table, refusal, write
from tests.bad_input.texts import GARBAGE, PROPERTY_VALUES
from tests.support.lakes import LAKES

from penstock.committers.delta.plan import _HARMLESS_PROPERTIES
from penstock.committers.errors import ConfigurationError, TableNotSupportedError
from penstock.committers.texts.safe_text import safe
from penstock.datasource.delta import options as delta
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.iceberg import options as iceberg
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.options.parsing import Option
from penstock.datasource.planning.plan import store_url

pytestmark = pytest.mark.parametrize("kind", LAKES)

OPTIONS = {"delta": delta.OPTIONS, "iceberg": iceberg.OPTIONS}
LOCATIONS = {"path", "warehouse", "checkpointLocation", "store", "table", "catalog"}
"""Options with locations, where tests write nothing."""

SECRET = "hunter2"


def parse(kind: str, **options: str) -> FileTableOptions:
    """Parse as the data source does: the keys of its options are in lower case."""
    if kind == "delta":
        parsed = delta.DeltaOptions.parse({"path": "/lake/t", **options})
        assert DeltaSink(parsed).table_uri
        return parsed
    of_iceberg = iceberg.IcebergOptions.parse({"table": "db.t", "warehouse": "/lake", **options})
    assert IcebergSink(of_iceberg).table_uri
    return of_iceberg


@st.composite
def options_of(draw: st.DrawFn, kind: str) -> tuple[Option, str]:
    return draw(st.sampled_from(OPTIONS[kind])), draw(GARBAGE)


@examples(300)
@given(st.data())
def test_a_value_is_accepted_or_refused_by_the_name_of_its_option(kind: str, data: st.DataObject) -> None:
    option, value = data.draw(options_of(kind))
    message = refusal(lambda: parse(kind, **{option.name.lower(): value}))
    if message is not None:
        assert option.name in message
        assert len(message) < 2_000
        message.encode()  # it goes through sockets, logs and the JVM


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sortWithin", "[" * 100_000),
        ("tableProperties", '{"a":' * 100_000),
        ("tableProperties", '{"\\ud800": "x"}'),
        ("targetFileSize", "9" * 400),
        ("rowGroupRows", "9" * 5000),
        ("sortWithin", "a,a," + "b" * 100_000),
        ("queryName", "a\0b"),
        ("queryName", "\ud800"),
    ],
)
def test_a_value_that_python_fails_on_is_refused_by_the_name_of_its_option(
    kind: str, option: str, value: str
) -> None:
    with pytest.raises(ConfigurationError, match=option) as caught:
        parse(kind, **{option.lower(): value})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("path", ["/lake/a\nb", "/lake/a\\b", "/lake/\x7f"])
def test_a_path_that_the_delta_library_changes_is_refused(kind: str, path: str) -> None:
    if kind == "delta":
        with pytest.raises(ConfigurationError, match="path"):
            parse(kind, path=path)


@examples(200)
@given(st.data())
def test_all_problems_are_reported_at_once(kind: str, data: st.DataObject) -> None:
    """In one error with a line for each."""
    given_ = dict(data.draw(st.lists(options_of(kind), max_size=5, unique_by=lambda pair: pair[0].name)))
    options = {option.name.lower(): value for option, value in given_.items()}
    wrong = {option.name for option in given_ if not _is_accepted(kind, option, given_[option])}
    if not wrong:
        return
    with pytest.raises(ConfigurationError) as caught:
        parse(kind, **options)
    named = [name for name in wrong if name in str(caught.value)]
    assert sorted(named) == sorted(wrong)


def _is_accepted(kind: str, option: Option, value: str) -> bool:
    """Return True if the option's own parser accepts the value."""
    try:
        option.parse(value)
        value.encode()
    except (ValueError, ConfigurationError):
        return False
    return "\0" not in value and (kind, option.name) != ("iceberg", "path")


@examples(200)
@given(st.data())
def test_an_unknown_option_is_refused_by_its_name_and_its_value_is_not_shown(
    kind: str, data: st.DataObject
) -> None:
    """The value may be a secret under a misspelled name."""
    near = st.sampled_from(OPTIONS[kind]).flatmap(lambda option: _misspelled(option.name.lower()))
    key = data.draw(near | st.text(min_size=1, max_size=20))
    known = {option.name.lower() for option in OPTIONS[kind]} | {"path"}
    assume(key.lower() not in known and not key.lower().startswith(("storage.", "catalog.")))
    with pytest.raises(ConfigurationError) as caught:
        parse(kind, **{key: f"postgresql://u:{SECRET}@h/d"})
    message = str(caught.value).lower()  # an option of another sink is named as documented
    assert repr(key)[1:-1].lower() in message or safe(key).lower() in message
    assert SECRET not in str(caught.value)


def _misspelled(name: str) -> st.SearchStrategy[str]:
    places = st.integers(0, len(name) - 1)
    others = st.sampled_from("aeiou_-. ")
    return st.one_of(
        places.map(lambda i: name[:i] + name[i + 1 :]),
        places.map(lambda i: name[:i] + name[i] + name[i:]),
        st.builds(lambda i, other: name[:i] + other + name[i + 1 :], places, others),
    )


@examples(200)
@given(st.data())
def test_secrets_are_in_no_error_and_in_no_repr(kind: str, data: st.DataObject) -> None:
    prefix = "storage." if kind == "delta" else "catalog."
    secrets = {
        "store": f"postgresql://u:{SECRET}@h/d",
        prefix + data.draw(st.text(max_size=10)): SECRET + data.draw(st.sampled_from(["", "\0", "\ud800"])),
    }
    option, value = data.draw(options_of(kind))
    options = {option.name.lower(): value, **secrets}
    message = refusal(lambda: parse(kind, **options))
    if message is not None:
        assert SECRET not in message
        return
    parsed = parse(kind, **options)
    assert SECRET not in repr(parsed)
    sink = DeltaSink(parsed) if isinstance(parsed, delta.DeltaOptions) else IcebergSink(parsed)  # type: ignore[arg-type]
    assert SECRET not in repr(sink)
    assert SECRET not in sink.table_uri


@pytest.mark.parametrize("option", ["createTable", "targetFileSize", "compression", "maxCommitAttempts"])
def test_a_password_in_the_value_of_a_wrong_option_is_not_shown(kind: str, option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(kind, **{option.lower(): f"postgresql://u:{SECRET}@h/d"})
    assert SECRET not in str(caught.value)


# As far as a table ------------------------------------------------------------------------------------

SCHEMA = StructType([StructField("a", LongType()), StructField("s", StringType())])
ROWS = pa.record_batch([pa.array([2, 1, None]), pa.array(["x", None, "y"])], names=["a", "s"])


@examples(60)
@given(st.data())
def test_an_accepted_value_works_or_is_refused_before_a_file_is_written(
    kind: str, data: st.DataObject
) -> None:
    option = data.draw(st.sampled_from([known for known in OPTIONS[kind] if known.name not in LOCATIONS]))
    value = data.draw(GARBAGE)
    with new_table(kind) as table:
        message = refusal(lambda: write(table, SCHEMA, [ROWS], **{option.name.lower(): value}))
        if message is not None:
            assert option.name in message
            assert table.data_files() == set()
        elif option.name != "branch":  # which is for others to read
            assert by_duckdb(table).num_rows == ROWS.num_rows


ICEBERG_PROPERTIES = [
    "commit.manifest-merge.enabled", "commit.manifest.min-count-to-merge",
    "commit.manifest.target-size-bytes", "commit.retry.num-retries", "format-version", "gc.enabled",
    "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep",
    "penstock.expire-snapshots", "penstock.maintenance", "read.split.target-size",
    "schema.name-mapping.default", "write.avro.compression-codec", "write.data.path", "write.delete.mode",
    "write.metadata.compression-codec", "write.metadata.delete-after-commit.enabled",
    "write.metadata.metrics.column.a", "write.metadata.metrics.default",
    "write.metadata.metrics.max-inferred-column-defaults", "write.metadata.path",
    "write.metadata.previous-versions-max", "write.object-storage.enabled",
    "write.object-storage.partitioned-paths", "write.parquet.bloom-filter-enabled.column.a",
    "write.parquet.compression-codec", "write.parquet.compression-level", "write.parquet.dict-size-bytes",
    "write.parquet.page-row-limit", "write.parquet.page-size-bytes", "write.parquet.row-group-limit",
    "write.parquet.row-group-size-bytes", "write.summary.partition-limit",
    "write.target-file-size-bytes",
]  # fmt: skip
PROPERTIES = {"delta": list(_HARMLESS_PROPERTIES), "iceberg": ICEBERG_PROPERTIES}


@examples(60)
@given(data=st.data())
def test_a_property_makes_a_table_that_works_or_is_refused_by_its_name(
    kind: str, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits: the second one finds the property in the table."""
    monkeypatch.chdir(tmp_path)
    name = data.draw(st.sampled_from(PROPERTIES[kind]))
    value = data.draw(PROPERTY_VALUES)
    with new_table(kind) as table:
        message = refusal(lambda: write(table, SCHEMA, [ROWS], tableproperties=json.dumps({name: value})))
        if message is not None:
            assert name in message
            assert table.data_files() == set()
            return
        write(table, SCHEMA, [ROWS])
        # duckdb 1.5.5 knows no manifests that are compressed with zstd; Iceberg's own engines do.
        read = table.scan().collect().to_arrow() if value == "zstd" else by_duckdb(table)
        assert read.num_rows == 2 * ROWS.num_rows
        assert len(table.data_files()) >= 2


MEANINGLESS = {
    "delta": [("delta.checkpointInterval", "x"), ("delta.dataSkippingNumIndexedCols", "x")],
    "iceberg": [
        ("commit.manifest-merge.enabled", "maybe"),
        ("commit.manifest.min-count-to-merge", "x"),
        ("commit.manifest.target-size-bytes", "1.5"),
        ("gc.enabled", "0"),
        ("history.expire.max-snapshot-age-ms", "x"),
        ("history.expire.min-snapshots-to-keep", "x"),
        ("schema.name-mapping.default", "x"),
        ("write.avro.compression-codec", "lzo"),
        ("write.data.path", "x/y"),
        ("write.metadata.previous-versions-max", "x"),
        ("write.summary.partition-limit", ""),
    ],
}


def test_properties_that_libraries_fail_on_in_mid_commit_are_refused_by_their_names(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a new table, and of one that is there. No location may depend on where Spark was started."""
    monkeypatch.chdir(tmp_path)
    for name, value in MEANINGLESS[kind]:
        with new_table(kind) as table:
            with pytest.raises(ConfigurationError, match=name):
                write(table, SCHEMA, [ROWS], tableproperties=json.dumps({name: value}))
            assert table.data_files() == set()
        with new_table(kind) as table:
            table.create(ROWS.schema, {name: value})
            with pytest.raises(TableNotSupportedError, match=name):
                write(table, SCHEMA, [ROWS])
            assert table.data_files() == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.appendOnly", "maybe"),
        ("delta.logRetentionDuration", "30 days"),
        ("delta.checkpointIntervalX", "1"),
    ],
)
def test_properties_of_new_tables_that_other_engines_fail_on_are_refused(
    kind: str, name: str, value: str
) -> None:
    if kind == "delta":
        with new_table(kind) as table:
            with pytest.raises(ConfigurationError, match=name):
                write(table, SCHEMA, [ROWS], tableproperties=json.dumps({name: value}))
            assert not table.folder.exists()


@pytest.mark.parametrize("url", ["garbage", "://", "x://y", "mysql://h/d", "postgresql://u:hunter2@h:port/d"])
def test_an_invalid_store_is_refused_by_the_name_of_the_option(kind: str, url: str) -> None:
    from penstock.committers.store.sql import open_store

    with (
        pytest.raises(ConfigurationError, match="store") as caught,
        open_store(store_url(parse(kind, store=url))),
    ):
        pass
    assert SECRET not in str(caught.value)
