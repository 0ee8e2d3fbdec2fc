"""The documents agree with the code. `PENSTOCK_UPDATE_DOCS=1` writes the generated parts."""

from __future__ import annotations

import ast
import os
import re
import runpy
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.aws import NAMED_BY as AWS
from tests.support.search import KINDS as SEARCH
from tests.support.service_places import service_of

from penstock.datasource.fanout import options as fanout
from penstock.datasource.files import options as files
from penstock.datasource.kafka import options as kafka
from penstock.datasource.lake import options as lake
from penstock.datasource.options.declaring import options_of, prefixes_of
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.options.parsing import Option, Prefix
from penstock.datasource.options.stream import StreamOptions
from penstock.datasource.requests.options import RequestOptions
from penstock.delivery.metrics import Metrics

ROOT = Path(__file__).parent.parent
OPTIONS_PAGE = ROOT / "docs" / "options.md"
READING_PAGE = ROOT / "docs" / "reading.md"
OPTIONS_BLOCK = re.compile(r"(<!-- options of (.*?): .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


def _own(layer: type, base: type) -> tuple[Option, ...]:
    """The options that a layer adds to those of its base."""
    return tuple(option for option in options_of(layer) if option not in options_of(base))


TABLES = (
    "delta",
    "iceberg",
    "lance",
    "sql",
    "clickhouse",
    "duckdb",
    "ducklake",
    "hudi",
    "paimon",
    "postgres",
    "mysql",
)
REQUESTS = {kind: service_of(kind).options for kind in ("http", "redis", "nats", *AWS, *SEARCH)}

OPTIONS: dict[str, tuple[tuple[Option, ...], tuple[Prefix, ...]]] = {
    **{
        kind: (of.OPTIONS, of.PREFIXES)
        for kind in TABLES
        for of in [import_module(f"penstock.datasource.{kind}.options")]
    },
    **{
        kind: (
            _own(of, RequestOptions),
            tuple(one for one in prefixes_of(of) if one not in prefixes_of(RequestOptions)),
        )
        for kind, of in REQUESTS.items()
    },
    "kafka": (_own(kafka.KafkaOptions, DeliveryOptions), prefixes_of(kafka.KafkaOptions)),
    "requests": (_own(RequestOptions, DeliveryOptions), prefixes_of(RequestOptions)),
    "folders": (files.OPTIONS, files.PREFIXES),
    "fanout": (_own(fanout.FanoutOptions, DeliveryOptions), fanout.PREFIXES),
    "lake": (
        tuple(one for one in lake.OPTIONS if one.name == "formats"),  # the others are Delta's and Iceberg's
        lake.PREFIXES,
    ),
    **{
        f"{kind}, reading": (of.OPTIONS, of.PREFIXES)
        for kind in ("delta", "iceberg", "lance", "ducklake", "hudi", "postgres")
        for of in [import_module(f"penstock.datasource.{kind}.reading")]
    },
    **{
        f"{kind}, streams": (of.STREAM_OPTIONS, of.STREAM_PREFIXES)
        for kind in ("delta", "iceberg", "lance", "ducklake", "hudi")
        for of in [import_module(f"penstock.datasource.{kind}.reading")]
    },
    "all": (options_of(StreamOptions) + _own(DeliveryOptions, StreamOptions), prefixes_of(DeliveryOptions)),
    "files": (_own(FileTableOptions, DeliveryOptions), ()),
}


def options_table(of: str) -> str:
    options, prefixes = OPTIONS[of]
    if of != "all":
        prefixes = tuple(one for one in prefixes if one not in prefixes_of(DeliveryOptions))
    is_layer = of in ("all", "files", "requests")
    own = [one for one in options if is_layer or one not in options_of(FileTableOptions)]
    rows = [f"| `{option.name}` | {option.help} |" for option in own]
    secret = "Secrets are never" if of in ("fanout", "lake") else "Never"
    rows += [f"| `{prefix.name}*` | {prefix.help} {secret} shown or stored. |" for prefix in prefixes]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def test_the_pages_have_all_options() -> None:
    found: set[str] = set()
    for path in (OPTIONS_PAGE, READING_PAGE):
        page = path.read_text()
        wanted = OPTIONS_BLOCK.sub(lambda block: block[1] + options_table(block[2]) + block[3], page)
        if os.environ.get("PENSTOCK_UPDATE_DOCS"):
            path.write_text(wanted)
        found |= {block[2] for block in OPTIONS_BLOCK.finditer(page)}
        assert wanted == path.read_text(), "run it with PENSTOCK_UPDATE_DOCS=1"
    assert found == set(OPTIONS)
    for name, count in {"branch": 1, "lockWaitSeconds": 1}.items():
        assert OPTIONS_PAGE.read_text().count(f"| `{name}` |") == count


def test_the_readme_stays_short() -> None:
    """Everything else has a page of its own."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_supported_versions_are_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    *_, newest = re.findall(r"^pyspark==(\d\.\d)", (ROOT / "requirements" / "dev.txt").read_text(), re.M)
    (oldest,) = re.findall(r"pyspark==(\d\.\d)", (ROOT / "requirements" / "spark40.in").read_text())
    assert f'requires-python = ">={pythons[0]}"' in project
    for page in ("README.md", "docs/policy.md"):
        text = (ROOT / page).read_text()
        assert f"CPython {pythons[0]} to {pythons[-1]}" in text
        assert f"{oldest} to {newest}" in text


def test_the_badges_say_what_is_supported() -> None:
    badges = runpy.run_path(str(ROOT / "docs" / "site" / "badges.py"))
    wanted = badges["picture"](badges["badges"]())
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        badges["PICTURE"].write_text(wanted)
    assert wanted == badges["PICTURE"].read_text(), "run it with PENSTOCK_UPDATE_DOCS=1"


LOCKED = [
    "pyspark",
    "pyarrow",
    "deltalake",
    "pyiceberg",
    "obstore",
    "sqlalchemy",
    "confluent-kafka",
    "duckdb",
]
LOCKED += ["pylance", "hudi", "pypaimon", "psycopg", "pymysql"]
ENVIRONMENTS = {"": "dev", "Python 3.10": "dev", "Spark 4.0": "spark40", "Paimon": "paimon"}
TESTED = re.compile(r"(<!-- versions that CI installs: .*? -->\n).*?(<!-- end of versions -->)", re.DOTALL)


def versions_table() -> str:
    """A table of the versions in the lock files that CI installs."""
    rows = [["", "newest", *list(ENVIRONMENTS)[1:]], ["---"] * (len(ENVIRONMENTS) + 1)]
    for package in LOCKED:
        row = [f"`{package}`"]
        for environment, lock in ENVIRONMENTS.items():
            text = (ROOT / "requirements" / f"{lock}.txt").read_text()
            found = re.findall(rf"^{package}==(\S+)(?: ; python_full_version (<|>=) '3.11')?", text, re.M)
            other = "<" if environment != "Python 3.10" else ">="
            row += [version for version, bound in found if bound != other] or ["-"]
        rows.append(row)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_versions_that_ci_installs_are_listed() -> None:
    path, run = ROOT / "docs" / "policy.md", (ROOT / ".ci" / "run").read_text()
    installed = {"dev", *re.findall(r"\bin_environment (\S+)", run)}
    assert {"python3.10", *ENVIRONMENTS.values()} <= installed
    page = path.read_text()
    wanted = TESTED.sub(lambda block: block[1] + versions_table() + block[2], page)
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        path.write_text(wanted)
    assert wanted == path.read_text(), "run it with PENSTOCK_UPDATE_DOCS=1"


CODE = ("committers", "datasource", "readers", "testing", "writers")
PUBLIC = (
    "penstock",
    "penstock.destination",
    "penstock.reader",
    "penstock.testing",
    "penstock.testing.conformance",
)


def test_every_public_name_is_explained() -> None:
    """The pages of the API leave out names without a docstring."""
    names = [f"{module}.{name}" for module in PUBLIC for name in unexplained(module)]
    texts = [path.read_text() for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    assert [name for name in names if not is_explained(name.rpartition(".")[2], texts)] == []


@pytest.mark.parametrize("file", ["__init__.py", "destination.py", "reader.py", "testing/__init__.py"])
def test_the_pages_of_the_api_find_every_public_name(file: str) -> None:
    """They read the imports for type checkers, as names are loaded when they are first used."""
    (block,) = (one for one in ast.parse((ROOT / file).read_text()).body if isinstance(one, ast.If))
    found = {name.name for one in block.body if isinstance(one, ast.ImportFrom) for name in one.names}
    public = import_module(f"penstock.{file}".removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    assert set(public.__all__) == found


def unexplained(module: str) -> Iterator[str]:
    """Constants, aliases, and what has no docstring: that of a dataclass is otherwise its signature."""
    package = import_module(module)
    for name in package.__all__:
        it = getattr(package, name)
        if not callable(it) or not it.__doc__ or it.__doc__.startswith(f"{name}("):
            yield name


def is_explained(name: str, texts: Sequence[str]) -> bool:
    """True if a string follows the assignment to this name."""
    for text in texts:
        if re.search(rf"^{name}\b[^\n]* =", text, re.MULTILINE):
            for statement, following in pairwise(ast.parse(text).body):
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                    return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False


# Operations -----------------------------------------------------------------------------------------

OPERATIONS = ROOT / "docs" / "operations.md"
ALERTS = ROOT / "docs" / "prometheus-rules.yml"


def test_the_messages_in_the_troubleshooting_are_those_of_the_code() -> None:
    block = OPERATIONS.read_text().partition("<!-- messages:")[2].partition("<!-- end of messages -->")[0]
    quoted = re.findall(r"^\| `(.+?)` \|", block, re.MULTILINE)
    folders = ("cli", "committers", "datasource", "delivery", "operating", "ui", "writers")
    texts = [text for folder in folders for path in (ROOT / folder).rglob("*.py") for text in texts_of(path)]
    assert len(quoted) > 10
    assert [one for one in quoted if not any(one in text for text in texts)] == []


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a module; values in f-strings are `{}`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_alerts_use_metrics_that_are_served() -> None:
    asked = set(re.findall(r"\bpenstock_\w+", "\n".join(expressions())))
    assert len(asked) > 8
    assert asked <= served_metrics()


def test_each_alert_has_a_runbook_and_each_metric_is_explained() -> None:
    alerts, page = re.findall(r"- alert: (\w+)", ALERTS.read_text()), OPERATIONS.read_text()
    assert re.findall(r"^### (Penstock\w+)$", page, re.MULTILINE) == alerts
    bare = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in served_metrics()}
    explained = page + "\n".join(expressions())
    assert [name for name in sorted(bare) if name not in explained] == []


def expressions() -> list[str]:
    """The expressions of the alerts: all lines between `expr` and the next key."""
    return re.findall(r"expr: (.*?)\n +(?:for|labels):", ALERTS.read_text(), re.DOTALL)


def served_metrics() -> set[str]:
    """The names of all samples that a delivery process serves."""
    names: set[str] = set()
    for family in Metrics(["sqlite:///store"]).registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(
            family.type, ("",)
        )
        names |= {family.name + suffix for suffix in suffixes}
    return names


WALKS = re.findall(
    r"^\| \d \| `([\w/.]+)` \| `([\w.]+)` \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE
)


def test_a_batch_makes_three_walks_of_five_stops() -> None:
    assert len(WALKS) == 15


@pytest.mark.parametrize(("file", "function"), WALKS)
def test_each_stop_of_a_walk_is_in_the_code(file: str, function: str) -> None:
    scope: ast.AST = ast.parse((ROOT / file).read_text())
    for name in function.split("."):
        (scope,) = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", "") == name]


MAPS = ("docs/design.md", "docs/protocol.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("page", MAPS)
def test_files_and_folders_on_the_maps_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(
        r"`((?:cli|committers|datasource|delivery|operating|ui|writers|testing|tests|servers)/[\w/.]*)`", text
    )
    assert [one for one in named if not (ROOT / one).exists()] == []


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
)
def test_links_between_documents_are_not_broken(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []
