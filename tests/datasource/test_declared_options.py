"""Each option is declared once, with its parser, its documentation and its default."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, fields

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.http.options import HttpOptions
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.options.declaring import (
    declared,
    option,
    optional,
    options_of,
    passed_on,
    prefixes_of,
)
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.options.parsing import Option, Prefix, count, size, text
from penstock.datasource.options.stream import parse_as
from penstock.datasource.postgres.options import PostgresOptions
from penstock.writers.parquet.data_file_config import ROW_GROUP_ROWS

ALL = pytest.mark.parametrize("kind", [DeltaOptions, IcebergOptions, PostgresOptions, HttpOptions])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(DeliveryOptions):
    place: str = field(metadata=declared("place", text, "Where."))
    buffer: int = option("bufferSize", size(1, 1024), "How much.", default="1kb")
    limit: int | None = optional("limit", count(1, 9), "At most.", default="none")
    password: str | None = optional("password", text, "Secret.", is_secret=True)
    headers: object = passed_on("header.", str.lower, "Sent along.")


def test_a_declaration_has_the_parser_the_help_and_the_default() -> None:
    mine = parse_as(Mine, "mine", {"PLACE": "here", "header.X-A": "b"})

    assert (mine.place, mine.buffer, mine.limit, mine.headers) == ("here", 1024, None, {"x-a": "b"})
    assert [known.help for known in options_of(Mine)[:3]] == [
        "Where.",
        "How much. Default `1kb`.",
        "At most. Default: none.",
    ]
    assert [known.field for known in prefixes_of(Mine)] == ["headers", "dead_letter_options"]
    with pytest.raises(ConfigurationError, match=r"bufferSize='2kb': must be(.|\n)*place is missing"):
        parse_as(Mine, "mine", {"buffersize": "2kb"})


def test_a_layer_can_give_an_option_another_default() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Smaller(Mine):
        buffer: int = option("bufferSize", size(1, 1024), "How much.", default="1b")

    assert parse_as(Smaller, "smaller", {"place": "here"}).buffer == 1
    helps = [known.help for known in options_of(Smaller) if known.name == "bufferSize"]
    assert helps == ["How much. Default `1b`."]
    assert [known.name for known in options_of(Smaller)].count("place") == 1


def test_own_options_come_before_those_of_the_layers_below() -> None:
    names = [known.name for known in options_of(Mine)]
    assert names[:5] == ["place", "bufferSize", "limit", "password", "delivery"]
    assert names.index("backlogWaitSeconds") < names.index("checkpointLocation")


def test_a_secret_is_not_shown_nor_kept_with_what_was_given() -> None:
    mine = parse_as(Mine, "mine", {"place": "p", "password": "geheim", "header.token": "geheim"})
    assert "geheim" not in repr(mine)
    assert mine.given == {"place": "p"}


@ALL
def test_every_field_is_an_option_and_every_option_has_one_name(kind: type) -> None:
    known: list[Option | Prefix] = [*options_of(kind), *prefixes_of(kind)]
    assert sorted(one.field for one in known) == sorted({f.name for f in fields(kind)} - {"given"})
    assert max(Counter(one.name.lower() for one in known).values()) == 1


@ALL
def test_the_default_in_the_documents_is_the_one_that_holds(kind: type) -> None:
    defaults = {one.name: one.default for one in fields(kind)}
    documented = [
        (one, found[1]) for one in options_of(kind) if (found := re.search(r" Default `(.*)`\.$", one.help))
    ]
    assert len(documented) > 10
    assert [one.name for one, default in documented if one.parse(default) != defaults[one.field]] == []


def test_the_documented_rows_of_a_row_group_are_those_of_the_writer() -> None:
    (rows,) = [one for one in options_of(DeltaOptions) if one.name == "rowGroupRows"]
    assert f"{ROW_GROUP_ROWS:,}" in rows.help


def test_a_field_that_hides_another_option_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Hiding(DeliveryOptions):
        deliver_after_s: int = option("keyColumns", count(1, 9), "Something else.", default="1")

    with pytest.raises(
        TypeError, match=r"Hiding\.deliver_after_s is the option keyColumns.*deliverAfterSeconds"
    ):
        options_of(Hiding)
