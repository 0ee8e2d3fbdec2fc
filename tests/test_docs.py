"""The documents say what the code says. `PENSTOCK_UPDATE_DOCS=1` writes the generated parts anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from penstock.datasource.options import OPTIONS

ROOT = Path(__file__).parent.parent
OPTIONS_BLOCK = re.compile(r"(<!-- options: .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


def options_table() -> str:
    rows = [f"| `{option.name}` | {option.help} |" for option in OPTIONS]
    rows.append(
        "| `storage.*` | Handed to the object store, such as `storage.aws_region`. Never shown or stored. |"
    )
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def test_the_readme_has_all_options() -> None:
    readme = (ROOT / "README.md").read_text()
    wanted = OPTIONS_BLOCK.sub(lambda match: match[1] + options_table() + match[2], readme)
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        (ROOT / "README.md").write_text(wanted)
    assert wanted.count("`targetFileSize`") == 1
    assert wanted == (ROOT / "README.md").read_text(), "run it with PENSTOCK_UPDATE_DOCS=1"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []
