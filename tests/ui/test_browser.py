"""The page in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.chromium import Browser, browser
from tests.support.cli import Ended
from tests.support.stored_lake import Lake
from tests.support.unreachable import skipped_if_unreachable
from tests.ui.pictures import BYTES_MAX, draw
from tests.ui.serving import TOKEN, served
from tests.ui.shown_store import ShownStore

pytestmark = pytest.mark.slow

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"
LINKS = "Object.fromEntries([...document.querySelectorAll('td.name a')].map(a => [a.textContent, a.href]))"


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with skipped_if_unreachable(), browser() as started:
        yield started


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownStore]:
    made = ShownStore(f"sqlite:///{tmp_path_factory.mktemp('ui')}/store.db", batches=20)
    made.parked("payments", "iceberg", "prod:shop.payments")
    made.with_letters("customers", "opensearch", "https://search.example/customers")
    made.hostile()
    with made.store:
        yield made


def text(page: Browser, selector: str = "main") -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def fill(page: Browser, name: str, value: str) -> None:
    page.run(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")


def test_a_parked_stream_is_found_and_resolved(page: Browser, tmp_path: Path) -> None:
    with Lake(tmp_path, None, QUERY) as lake:
        options = {"delivery": "decoupled", "checkpoint": "", "options": {"path": str(lake.table)}}
        lake.store.register_stream(lake.stream, lake.kind, "ids", lake.table_id, json.dumps(options))
        for batch_id in (0, 1):
            lake.prepare(batch_id, lake.write(batch_id))
        lake.store.deliveries.park(lake.stream, "ops", "the table is being restored")
        with served(lake.store_url, allows_actions=True) as url:
            page.show(1280, 800)
            page.open(f"{url}?only=PARKED")
            assert "Sign in" in text(page)
            fill(page, "token", TOKEN)
            fill(page, "who", "ada")
            page.submit("document.querySelector('.login').requestSubmit()")
            assert "ids" in text(page, "td.name")
            page.submit("document.querySelector('td.name a').click()")
            assert "the table is being restored" in text(page, ".problem.parked")
            page.submit("document.querySelector('form[action$=\"/retry\"]').requestSubmit()")
            assert "The deliveries are resumed" in text(page, ".banner.done")
            assert page.errors == []
            ended = Ended("deliver", "--once", "--store", lake.store_url)
            assert ended.code == 0, ended.err
            page.run("refresh()")
            assert text(page, ".title .pill") == "idle"
            assert "retry\tada" in text(page)
    assert len(lake.rows()) == 4


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_each_page_fits_and_loads_only_its_own_files(
    page: Browser, shown: ShownStore, width: int, is_dark: bool
) -> None:
    page.show(width, 800, is_dark=is_dark)
    with served(shown.url) as url:
        page.open(url)
        links = page.run(LINKS)
        places = [f"{link}{part}" for link in links.values() for part in ("", "/letters", "/batches/1")]
        assert len(links) == 3
        for place in (url, f"{url}nothing", *places):
            page.open(place)
            assert [one for one in page.errors if "404" not in one and "503" not in one] == [], place
            assert all(one.startswith(url) for one in page.requested), place
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), place
            shade = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
            assert (shade < 64) is is_dark


def test_a_command_is_copied(page: Browser, shown: ShownStore) -> None:
    page.show(1280, 800)
    with served(shown.url) as url:
        page.open(url)
        page.open(page.run(LINKS)["payments"])
        page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        page.run("document.querySelector('button.copy:not([hidden])').click()")
        assert str(page.run("window.copied")).startswith("penstock retry 00000001-")


def test_the_pictures_of_the_documentation_are_small(
    page: Browser, shown: ShownStore, tmp_path: Path
) -> None:
    with served(shown.url) as url:
        draw(page, url, tmp_path)
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == 3
    assert all(one.stat().st_size < BYTES_MAX for one in pictures)
