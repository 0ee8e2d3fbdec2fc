"""Draws the pictures of docs/ui.md: `make ui-pictures`.

A real Chromium shows a store with streams in each state.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

from PIL import Image
from servers.chromium import Browser, browser
from tests.ui.serving import served
from tests.ui.shown_store import ShownStore

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BYTES_MAX = 150_000
COLORS = 256


def save(name: str, png: bytes, folder: Path = IMAGES) -> Path:
    """Write a screenshot with a palette, which makes it several times as small."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS)
    path = folder / f"{name}.png"
    picture.save(path, optimize=True)
    assert path.stat().st_size <= BYTES_MAX, f"{path} has {path.stat().st_size:,} bytes"
    return path


def draw(page: Browser, url: str, folder: Path = IMAGES) -> None:
    """Draw the list on a light screen, a parked stream on a dark one, and the list on a phone."""
    page.show(1280, 800)
    page.open(url)
    save("ui-streams", page.picture(), folder)
    links = "[...document.querySelectorAll('td.name a')]"
    stream = page.run(f"{links}.find(a => a.textContent == 'payments').href")
    page.show(1280, 960, is_dark=True)
    page.open(stream)
    save("ui-stream", page.picture(), folder)
    page.show(400, 800)
    page.open(url)
    save("ui-phone", page.picture(), folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        os.chdir(folder)  # the pictures show the URL
        made = ShownStore("sqlite:///penstock.sqlite", batches=120)
        made.add_everything()
        with served(made.url) as url:
            draw(page, url)


if __name__ == "__main__":
    main()
