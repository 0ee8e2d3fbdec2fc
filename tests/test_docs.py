"""The documents say what the code says. `PENSTOCK_UPDATE_DOCS=1` writes the generated parts anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from penstock.datasource.delta import options as delta
from penstock.datasource.iceberg import options as iceberg
from penstock.datasource.options.declaring import options_of
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.options.parsing import Option, Prefix
from penstock.datasource.options.stream import StreamOptions
from penstock.datasource.postgres import options as postgres

ROOT = Path(__file__).parent.parent
OPTIONS_BLOCK = re.compile(r"(<!-- options of (.*?): .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


def _own(layer: type, base: type) -> tuple[Option, ...]:
    """The options that a layer adds to those of its base."""
    return tuple(option for option in options_of(layer) if option not in options_of(base))


OPTIONS: dict[str, tuple[tuple[Option, ...], tuple[Prefix, ...]]] = {
    "delta": (delta.OPTIONS, delta.PREFIXES),
    "iceberg": (iceberg.OPTIONS, iceberg.PREFIXES),
    "postgres": (postgres.OPTIONS, postgres.PREFIXES),
    "all": (options_of(StreamOptions) + _own(DeliveryOptions, StreamOptions), ()),
    "files": (_own(FileTableOptions, DeliveryOptions), ()),
}


def options_table(of: str) -> str:
    options, prefixes = OPTIONS[of]
    is_layer = of in ("all", "files")
    own = [one for one in options if is_layer or one not in options_of(FileTableOptions)]
    rows = [f"| `{option.name}` | {option.help} |" for option in own]
    rows += [f"| `{prefix.name}*` | {prefix.help} Never shown or stored. |" for prefix in prefixes]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def test_the_readme_has_all_options() -> None:
    readme = (ROOT / "README.md").read_text()
    wanted = OPTIONS_BLOCK.sub(lambda block: block[1] + options_table(block[2]) + block[3], readme)
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        (ROOT / "README.md").write_text(wanted)
    for name in ("path", "table", "dbtable", "targetFileSize"):
        assert wanted.count(f"| `{name}` |") == 1
    assert wanted == (ROOT / "README.md").read_text(), "run it with PENSTOCK_UPDATE_DOCS=1"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []
