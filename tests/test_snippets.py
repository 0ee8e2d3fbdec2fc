"""What the documents show is accepted: options of queries by the sinks, commands by the command line."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.test_docs import REQUESTS, ROOT, TABLES

from penstock.cli.app import app
from penstock.committers.errors import ConfigurationError
from penstock.datasource.options.declaring import options_of, prefixes_of
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.plug_ins import load
from penstock.datasource.reading.formats import READ_OPTIONS, STREAM_OPTIONS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
COMMANDS: Any = typer.main.get_command(app)
MODULES = {
    kind: f"penstock.datasource.{kind}.options" for kind in (*TABLES, "files", "kafka", "lake", "fanout")
}


READERS = {"read": READ_OPTIONS, "readStream": STREAM_OPTIONS}


def options_class(kind: str) -> Any:
    """The dataclass that parses the options of `penstock.<kind>`."""
    if kind in REQUESTS:
        return REQUESTS[kind]
    module = import_module(MODULES[kind])
    (found,) = (
        one
        for _, one in inspect.getmembers(module, inspect.isclass)
        if one.__module__ == module.__name__ and issubclass(one, DeliveryOptions)
    )
    return found


@dataclass
class Query:
    """A chain of calls such as `stream.writeStream.format("penstock.delta").option(...)`."""

    kind: str = ""
    given: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Options whose value is computed."""
    is_open: bool = True
    """Some options are not in the chain, or it starts nothing."""
    reads: Mapping[str, str] | None = None
    """Where the options are that readers take; None: it writes."""


def chains(tree: ast.AST) -> Iterator[Query]:
    inner = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in inner:
            query = Query()
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                collect(query, node.func.attr, node)
                node = node.func.value
                if isinstance(node, ast.Attribute) and node.attr in (*READERS, "writeStream", "write"):
                    query.reads = READERS.get(node.attr)
                    break
            if query.kind:
                yield query


def collect(query: Query, method: str, call: ast.Call) -> None:
    if method == "format" and isinstance(call.args[0], ast.Constant):
        _, _, query.kind = str(call.args[0].value).partition("penstock.")
    elif method == "option" and len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
        add(query, str(call.args[0].value), call.args[1])
    elif method in ("start", "save", "load"):
        query.is_open = False  # the last call, so the first one here
        if call.args:
            add(query, "path", call.args[0])
    elif method == "options":
        for keyword in call.keywords:
            if keyword.arg is None:
                query.is_open = True
            else:
                add(query, keyword.arg, keyword.value)
    elif method == "option":
        query.is_open = True


def add(query: Query, name: str, value: ast.expr) -> None:
    if isinstance(value, ast.Constant):
        text = str(value.value)
        query.given[name] = text.lower() if isinstance(value.value, bool) else text
    else:
        query.names.add(name)


def problems(query: Query) -> list[str]:
    """What the sink would say, but for what the chain leaves open."""
    if query.kind == "fanout":
        return [*problems_of_targets(query), *problems_of(query, "fanout")]
    return problems_of(query, query.kind)


def problems_of(query: Query, kind: str) -> list[str]:
    parser = options_class(kind) if query.reads is None else load(query.reads[f"penstock.{kind}"])
    known = {option.name for option in options_of(parser)}
    prefixes = tuple(prefix.name for prefix in prefixes_of(parser))
    found = [
        f"{name} is unknown" for name in query.names if name not in known and not name.startswith(prefixes)
    ]
    try:
        parser.parse(query.given)
    except ConfigurationError as error:
        lines = re.findall(r"^  - (.*)$", str(error), re.MULTILINE) or [str(error)]
        if query.is_open or query.names:  # then no combination is known
            lines = [line for line in lines if re.search(r"is not an option|^\S+=.*: must", line)]
        found += lines
    return found


def problems_of_targets(query: Query) -> list[str]:
    targets: dict[str, Query] = {}
    for key, value in query.given.items():
        if match := re.fullmatch(r"target\.(\w+)", key):
            targets[match[1]] = Query(value.removeprefix("penstock."), names=set(query.names & {"-"}))
    for key in [*query.given, *query.names]:
        match = re.fullmatch(r"target\.(\w+)\.(.+)", key)
        if match and match[1] in targets:
            target = targets[match[1]]
            if key in query.given:
                target.given[match[2]] = query.given[key]
            else:
                target.names.add(match[2])
    for target in targets.values():
        target.given.setdefault("checkpointLocation", "/checkpoints/all")
    return [f"{name}: {one}" for name, target in targets.items() for one in problems_of(target, target.kind)]


def blocks(page: Path) -> Iterator[ast.AST]:
    for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        text = textwrap.dedent(text)
        with suppress(SyntaxError):  # of text with dots in place of code
            yield ast.parse(f"(stream.writeStream{text})" if text.startswith(".") else text)


QUERIES = [
    pytest.param(query, id=f"{page.stem}-{query.kind}-{number}")
    for page in PAGES
    for number, query in enumerate(query for block in blocks(page) for query in chains(block))
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_in_the_documents_has_options_that_its_sink_takes(query: Query) -> None:
    assert problems(query) == []


def test_most_pages_have_queries() -> None:
    assert len(QUERIES) > 50


@pytest.mark.parametrize(
    ("chain", "problem"),
    [
        (
            's.writeStream.format("penstock.delta").option("path", "/t").option("partitonBy", "a")',
            "partitonBy",
        ),
        ('s.writeStream.format("penstock.delta").option("path", "/t").option("partitonBy", a)', "partitonBy"),
        ('s.writeStream.format("penstock.iceberg").option("catalog", "c").start()', "table is missing"),
        ('s.read.format("penstock.delta").option("partitionBy", "a").load("/t")', "partitionBy"),
        ('s.read.format("penstock.iceberg").option("warehouse", "/w").load()', "table is missing"),
        (
            's.writeStream.format("penstock.fanout").option("target.a", "penstock.delta")'
            '.option("target.a.paths", "/t")',
            "paths",
        ),
    ],
)
def test_a_wrong_option_would_be_noticed(chain: str, problem: str) -> None:
    (query,) = chains(ast.parse(chain))
    assert problem in "\n".join(problems(query))


def command_lines(page: Path) -> Iterator[str]:
    for text in re.findall(r"^```\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in text.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:\$ |/opt/penstock/bin/)?penstock (.*?)(?: +#.*)?$", line):
                yield match[1]


LINES = [pytest.param(line, id=f"{page.stem}-{line[:40]}") for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize("line", LINES)
def test_a_command_in_the_documents_is_one(line: str) -> None:
    words = shlex.split(line)
    command: Any = COMMANDS
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, line
        name, *words = words
        command = command.commands[name]
    if not {"...", "…"} & set(words):
        command.make_context(command.name, words)


# Pages on what other tools' settings become ---------------------------------------------------------

ALL: Mapping[str, Any] = {
    option.name: option for kind in (*REQUESTS, *MODULES) for option in options_of(options_class(kind))
}


@pytest.mark.parametrize("page", ["migrate.md", "cookbook.md"])
def test_an_option_with_a_value_in_the_text_exists(page: str) -> None:
    """Those of other tools have a dot, a dash or an underscore."""
    text = (ROOT / "docs" / page).read_text()
    for name, value in re.findall(r"`([a-zA-Z]+)=([^`\"]+)`", text):
        assert name in ALL, f"{name}={value}"
        if name != "keys":
            ALL[name].parse(value)
