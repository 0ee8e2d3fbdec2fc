"""Draws the badges of the README as one picture, as there is no server to ask: `python docs/site/badges.py`.

What they say comes from the files that decide it: pyproject.toml, and the versions that CI installs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "badges.svg"
CHARACTER, PADDING, HEIGHT, GAP = 7, 8, 22, 8
"""In pixels; of a character, on average in this font."""


def badges() -> Mapping[str, str]:
    project = (ROOT / "pyproject.toml").read_text()
    requirements = ROOT / "requirements"
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    (licence,) = re.findall(r'^license = "(.*)"', project, re.M)
    *_, newest = re.findall(r"^pyspark==(\d\.\d)", (requirements / "dev.txt").read_text(), re.M)
    (oldest,) = re.findall(r"pyspark==(\d\.\d)", (requirements / "spark40.in").read_text())
    return {
        "Python": f"{pythons[0]} to {pythons[-1]}",
        "Spark": f"{oldest} to {newest}",
        "jars": "none",
        "types": "checked",
        "licence": licence,
    }


def picture(content: Mapping[str, str]) -> str:
    parts, left = [], 0
    for name, value in content.items():
        widths = [len(text) * CHARACTER + 2 * PADDING for text in (name, value)]
        for text, width, colour in zip((name, value), widths, ("#42526e", "#1f7a4d"), strict=True):
            parts.append(f'<rect x="{left}" width="{width}" height="{HEIGHT}" fill="{colour}"/>')
            parts.append(f'<text x="{left + width / 2:g}" y="15">{escape(text)}</text>')
            left += width
        left += GAP
    title = escape(", ".join(f"{name}: {value}" for name, value in content.items()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - GAP}" height="{HEIGHT}" role="img">\n'
        f"<title>{title}</title>\n"
        '<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff" text-anchor="middle">\n'
        + "\n".join(parts)
        + "\n</g>\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(badges()))
