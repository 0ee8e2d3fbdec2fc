"""Names of tables, and the texts of partitionSpec and sortOrder: read back as written, or refused."""

from __future__ import annotations

import pytest

from penstock.committers.contract import PartitionField, SortField
from penstock.committers.errors import ConfigurationError
from penstock.committers.iceberg.address import IcebergAddress, parse_table_name
from penstock.committers.iceberg.terms import parse_partition_spec, parse_sort_order


@pytest.mark.parametrize(
    ("address", "uri"),
    [
        (IcebergAddress("prod", ("sales", "orders")), "prod:sales.orders"),
        (IcebergAddress("prod", ("eu", "sales", "orders"), "audit"), "prod:eu.sales.orders@audit"),
        (IcebergAddress("/lake", ("db", "t")), "/lake:db.t"),
        (IcebergAddress("/la:ke@home", ("db", "t"), "a@b/c"), "/la:ke@home:db.t@a@b/c"),
    ],
    ids=str,
)
def test_an_address_is_parsed_back_from_its_uri(address: IcebergAddress, uri: str) -> None:
    assert address.uri == uri
    assert IcebergAddress.parse(uri) == address


@pytest.mark.parametrize("uri", ["", "orders", "prod:orders", "prod:a.b@", ":a.b", "/lake/db/t"])
def test_what_is_no_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        IcebergAddress.parse(uri)


def test_a_url_is_no_catalog_name_and_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        IcebergAddress("postgresql://me:pa55word@host/db", ("a", "b"))
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("branch", ["", "a:b", "a b"])
def test_a_branch_that_would_not_parse_back_is_refused(branch: str) -> None:
    with pytest.raises(ConfigurationError, match="branch"):
        IcebergAddress("c", ("a", "b"), branch)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("orders", "has no namespace"),
        ("", "is empty"),
        *[(name, "has an empty part") for name in ("sales.", ".orders", "sales..orders")],
        ("sales. orders", "whitespace"),
        ("sales.or@ders", "an @"),
        ("..x/../../y.t", "empty part"),
        ("sales.a/b", "a slash"),
    ],
)
def test_a_table_name_is_refused_with_what_is_wrong(name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_table_name(name)


def test_namespaces_may_be_nested() -> None:
    assert parse_table_name("a.b.c") == ("a", "b", "c")


# partitionSpec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", []),
        ("region", [("", ("region",), "identity")]),
        ("identity(region)", [("", ("region",), "identity")]),
        (
            " day(ts),bucket( 16 ,id ) , truncate(4, s)",
            [("", ("ts",), "day"), ("", ("id",), "bucket[16]"), ("", ("s",), "truncate[4]")],
        ),
        (
            "years(a), months(a), days(a), hours(a), date(a), date_hour(a)",
            [("", ("a",), unit) for unit in ("year", "month", "day", "hour", "day", "hour")],
        ),
        ("DAY(event.at) AS at_day", [("at_day", ("event", "at"), "day")]),
        ("`a.b`, bucket(2, `x,``y`.z)", [("", ("a.b",), "identity"), ("", ("x,`y", "z"), "bucket[2]")]),
        ("day, hour as `as`", [("", ("day",), "identity"), ("as", ("hour",), "identity")]),
        ("straße", [("", ("straße",), "identity")]),
    ],
)
def test_partition_fields(text: str, fields: list[tuple[str, tuple[str, ...], str]]) -> None:
    assert parse_partition_spec(text) == tuple(PartitionField(*part) for part in fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("day(ts", r"'\)' is expected at position 7 of 'day\(ts', where the text ends"),
        ("day ts", "a comma or the end is expected at position 5 .*where there is 'ts'"),
        ("week(ts)", r"a column or a transform is expected at position 1 .*bucket\(n, c\)"),
        ("void(ts)", "a column or a transform"),
        ("monht(ts)", r"did you mean month\?"),
        ("bucket(id, 16)", "a whole number of at least 1 is expected at position 8"),
        ("bucket(0, id)", "a whole number"),
        ("bucket(-4, id)", "a name or one of .* at position 8"),
        ("bucket(99999999999, id)", "a whole number"),
        ("a,,b", "a name is expected at position 3"),
        ("a,", "a name is expected at position 3.*the text ends"),
        ("a.", "a name is expected"),
        ("day()", "a name is expected at position 5"),
        ("`a", "a name or one of"),
        ("a-b", "a name or one of .* at position 2"),
    ],
)
def test_a_partition_spec_is_refused_with_the_place_and_what_is_known(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"partitionSpec.*{says}"):
        parse_partition_spec(text)


# sortOrder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("id", [SortField(("id",), "identity", False, True)]),
        ("id DESC", [SortField(("id",), "identity", True, False)]),
        (
            "day(ts) desc nulls first, `a b`.c ASC NULLS LAST",
            [SortField(("ts",), "day", True, True), SortField(("a b", "c"), "identity", False, False)],
        ),
        ("`desc` desc", [SortField(("desc",), "identity", True, False)]),
        ("bucket(4, id)", [SortField(("id",), "bucket[4]", False, True)]),
    ],
)
def test_sort_fields(text: str, fields: list[SortField]) -> None:
    """Without NULLS FIRST or LAST, NULLs are the smallest, as Iceberg has it."""
    assert parse_sort_order(text) == tuple(fields)


@pytest.mark.parametrize("text", ["id NULLS", "id NULLS MIDDLE", "id up", "id desc asc", "id as x"])
def test_a_sort_order_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sortOrder.*is expected at position"):
        parse_sort_order(text)
