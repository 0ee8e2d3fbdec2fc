"""Options of `penstock.fanout`: what is refused before any row is written, and what its targets get."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.committers.deliveries.contract import Backlog
from penstock.committers.errors import ConfigurationError
from penstock.datasource.fanout.query import fanout_query
from penstock.datasource.fanout.source import FanoutDataSource
from penstock.datasource.options.declaring import options_of
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.planning.decoupled_planning import bound_of
from penstock.datasource.plug_ins import BUILT_IN, load

SECRET = "geheim-4711"
LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)


def sink(**more: str | None) -> Any:
    """As Spark passes options: with names in lower case."""
    given = {
        "target.lake": "penstock.delta",
        "target.lake.path": "/tmp/lake",
        "target.search": "penstock.http",
        "target.search.url": "https://api.example.com/rows",
        "checkpointLocation": "/checkpoints/q",
        **more,
    }
    return fanout_query({key.lower(): value for key, value in given.items() if value is not None})


def with_dots(**given: str | None) -> dict[str, str | None]:
    return {key.replace("__", "."): value for key, value in given.items()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            dict.fromkeys(("target.lake", "target.lake.path", "target.search", "target.search.url")),
            r"There is no target: .* .option\(.target.lake., .penstock.delta.\)",
        ),
        (with_dots(target__lakes__path="/x"), r"target\.lakes\.\*: there is no target .*only lake, search"),
        ({"target.a b": "penstock.delta"}, "the name of a target must be of letters"),
        (with_dots(target__lake="parquet"), "'parquet' is not a format.* Known: penstock.delta"),
        (with_dots(target__lake="penstock.fanout"), "its format cannot be penstock.fanout"),
        (with_dots(target__lake__path=None), "Target lake: .*path is missing"),
        (with_dots(target__search__urll="x"), "Target search: .*urll is not an option"),
        (with_dots(delivery="coupled"), "a fan-out is always decoupled"),
        (with_dots(target__lake__delivery="decoupled"), r"target\.lake\.delivery: .* Remove it\."),
        (with_dots(target__lake__checkpointLocation="/x"), "all targets have the checkpointLocation of the"),
        (with_dots(target__search__store="sqlite:////x"), "all targets have the store of the query"),
        (with_dots(target__lake__badRows="deadLetter"), "Target lake: .*badRows=deadLetter needs deadLetter"),
        (with_dots(path="/tmp/lake"), "path is not an option: each target has its own"),
        (with_dots(deliverAfterSecond="3"), "deliveraftersecond is not an option.*deliverAfterSeconds"),
        (
            with_dots(target__search="penstock.delta", target__search__url=None)
            | with_dots(target__search__path="/tmp/lake/"),
            "Targets lake and search are the same: '/tmp/lake'",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(more: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        sink(**more)


def test_all_problems_of_all_targets_are_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as error:
        sink(**with_dots(target__lake__path=None, target__search__url=None))
    assert "path is missing" in str(error.value)
    assert "url is missing" in str(error.value)


def test_no_error_or_repr_has_a_secret() -> None:
    secret = {"target.search.bearerToken": SECRET, "store": f"postgresql://u:{SECRET}@db/penstock"}
    opened = sink(**secret)
    assert SECRET not in repr(opened)
    assert SECRET not in repr(opened.targets["search"])
    assert opened.targets["search"].options.bearer_token == SECRET
    for wrong in ({"target.search.passwort": SECRET}, {"target.other.password": SECRET}):
        with pytest.raises(ConfigurationError) as error:
            sink(**secret, **wrong)
        assert SECRET not in str(error.value)


def test_targets_get_the_options_of_the_query_and_their_own_first() -> None:
    opened = sink(
        **{
            "queryName": "flights",
            "backlogSeconds": "30",
            "target.search.backlogSeconds": "7",
            "store": "sqlite:////stores/s.db",
            "eventTime": "ts",
            "target.search.format": "row",
        }
    )
    lake, search = (opened.targets[name].options for name in ("lake", "search"))
    assert search.format == "row", "an option of HTTP endpoints"
    assert (lake.backlog_s_max, search.backlog_s_max) == (30, 7)
    assert (lake.query_name, search.query_name) == ("flights.lake", "flights.search")
    for one in (lake, search):
        assert (one.store, one.event_time, one.is_decoupled) == ("sqlite:////stores/s.db", "ts", True)
    assert search.given["rowLog"] == "/checkpoints/q/row-log"


def test_a_target_that_is_down_for_a_day_does_not_hold_up_the_others() -> None:
    """With a batch a second. Only the size of its backlog does, or a limit that is given."""
    for name, options in sink().targets.items():
        bound = bound_of(options.options)
        day = Backlog(86_400, 86_400, 864_000, (100 << 30) - 1, LONG_AGO)
        assert bound.exceeded(day, LONG_AGO + timedelta(days=1)) == "", name
        full = replace(day, size_bytes=100 << 30)
        assert bound.exceeded(full, LONG_AGO) == "107,374,182,400 bytes wait (backlogBytes=107374182400)"
    given = sink(backlogBatches="5", **{"target.search.backlogSeconds": "7"})
    lake, search = (bound_of(given.targets[name].options) for name in ("lake", "search"))
    assert (lake.batches, lake.age_s) == (5, 172_800)
    assert (search.batches, search.age_s) == (5, 7)


def test_the_row_log_of_the_query_is_that_of_its_targets_without_files() -> None:
    opened = sink(rowLog="s3://bucket/log", **{"storage.AWS_REGION": "eu-west-1"})
    search = opened.targets["search"].options
    assert search.row_log == "s3://bucket/log"
    assert search.storage_options == {"AWS_REGION": "eu-west-1"}
    assert opened.targets["lake"].options.storage_options == {}


def test_a_batch_write_is_refused() -> None:
    source = FanoutDataSource({"target.a": "penstock.delta"})
    with pytest.raises(ConfigurationError, match="only for streams"):
        source.writer(None, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BUILT_IN)
def test_each_built_in_destination_can_be_a_target(kind: str) -> None:
    """Its format is found by its kind, and it takes the options of all sinks."""
    destination = load(BUILT_IN[kind])
    assert load(destination.data_source).name() == f"penstock.{kind}"
    of_all = {option.name for option in options_of(DeliveryOptions)}
    assert {option.name for option in destination.options} >= of_all
