"""What is shown or stored has no credentials of URLs and no control characters."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import penstock
from penstock import PenstockError
from penstock.committers.errors import MESSAGE_MAX, ConfigurationError, shown
from penstock.committers.texts.safe_text import get_logger, printable, safe, without_credentials

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host/db",
        f"postgresql://me:a/{SECRET}@host/db",
        f"postgresql://me:{SECRET}/b@c?d#e@host/db",
        f"postgresql://me:12/{SECRET}@host/db",
        f"postgresql://me:'{SECRET}\"@host/db",
        f"postgresql+psycopg://me@host/db?password={SECRET}&x=1",
        f"https://{SECRET}@host/x",
        f"https://me:12{SECRET}@host:80/x",
        f"https://host:80/x?uri=s3://me:{SECRET}/1@b",
        f"https://host:80/https://{SECRET}@host/x",
        f"thrift://a:9083,thrift://me:{SECRET}/1@b:9083#db.t@audit",
        f"s3://key:{SECRET}/x@bucket/t",
        f"abfss://c@account/t?sv=1&sig={SECRET}",
        f"https://host/t?X-Amz-Security-Token={SECRET}&X-Amz-Signature={SECRET}",
        f"GET /t?AWSAccessKeyId={SECRET}",
    ],
)
def test_credentials_of_a_url_are_in_no_error(url: str) -> None:
    error = ConfigurationError(f"It failed at '{url}', it seems.")
    assert SECRET not in repr(error) + str(error) + shown(url)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert without_credentials(str(error)) == str(error)


def test_a_message_has_a_bound_and_keeps_its_beginning_and_its_end() -> None:
    error = ConfigurationError("It is wrong: " + "x" * 100_000 + ". Correct it.")
    assert len(str(error)) <= MESSAGE_MAX
    assert str(error).startswith("It is wrong: xx")
    assert str(error).endswith("xx. Correct it.")
    assert "characters left out" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "text",
    [
        "abfss://container@account.dfs.core.windows.net/t",
        "postgresql+psycopg://me@host:5432/db",
        "s3://bucket/a@b/key=1",
        "https://host:8181/v1/prod?warehouse=w",
        "/lake/me:you@host/key=1",
        "file:///lake/a:b@c",
        "hdfs://nn:8020/data/user@corp/t",
        "https://host:8181#db.t@audit",
        "https://host#db.t@audit",
        "thrift://a:9083,thrift://b:9083#db.t@audit",
    ],
)
def test_text_without_credentials_stays(text: str) -> None:
    assert safe(text) == text


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb", "a\x9bb", "a\x00b", "a\u202eb", "a\u2028b", "a\x7fb"])
def test_control_characters_are_shown_as_escapes(text: str) -> None:
    for clean in (printable(text), str(PenstockError(text))):
        assert clean == repr(text)[1:-1]
    assert printable("ü 漢\n") == "ü 漢\\n"
    assert str(PenstockError("two\nlines")) == "two\nlines"


def test_every_logger_of_the_package_is_a_safe_one() -> None:
    package = Path(penstock.__file__).parent
    folders = [
        (package / name).resolve() for name in ("committers", "datasource", "delivery", "cli", "writers")
    ]
    sources = {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}
    unsafe = {
        path.name for path, text in sources.items() if re.search(r"^logger = logging", text, re.MULTILINE)
    }
    assert (len(sources) > 100, unsafe) == (True, set())


def test_a_log_line_cannot_be_forged_and_shows_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a name, nor by an error of a library or its traceback."""
    logger, forged = get_logger("penstock.test"), f"x\n2026 ERROR forged \x1b[2J s3://k:{SECRET}/x@b"
    try:
        raise ValueError(forged)
    except ValueError as error:
        logger.warning("%s: %s after %d tries", forged, error, 3, exc_info=True)
    first, *traceback = caplog.text.splitlines()
    assert first.endswith("after 3 tries")
    assert traceback[-1].startswith("    ")
    assert all(line.isprintable() and line.startswith("    ") for line in traceback)
    assert SECRET not in caplog.text
    assert first.isprintable()


@pytest.mark.parametrize("text", ["a", "?key", "?", "://", "a://"])
def test_a_long_text_does_not_take_time_with_the_square_of_its_length(text: str) -> None:
    """`a` took minutes: a text in the store could stop a delivery process."""
    without_credentials(text * (200_000 // len(text)))
