"""Hooks of MkDocs: patterns in `nav`, the first page, and pages that load nothing from another server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

DIAGRAM = '<pre class="mermaid">'
MERMAID = "mermaid.min.js"
NOTEBOOK_DIAGRAMS = re.compile(
    r'<script type="module">(?:(?!</script>).)*?cdnjs\.(?:(?!</script>).)*</script>', re.DOTALL
)
"""What nbconvert adds to each notebook; ours have no diagrams."""

LANDING = Path(__file__).with_name("landing.md")

FOREIGN = re.compile(
    r"""<(?:script|link|img|iframe)[^>]*\s(?:src|href)=["']?https?://[^"' >]+|import\(["']https?://[^"']+"""
)


def on_config(config: Any) -> Any:
    """Replace each pattern in `nav` by the pages that it matches, in the order of their names."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show what it is at the top of the first page, in place of the README's first lines for a repository."""
    if page.file.src_uri != "README.md":
        return markdown
    page.meta["hide"] = ["navigation", "toc"]
    page.meta["title"] = "Penstock"
    landing = LANDING.read_text().replace("](../../", "](").replace("](../", "](docs/")
    return landing + markdown[markdown.index("## Try it") :]


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load the diagram library before the theme looks for it, on the pages that have a diagram.

    Raises:
        PluginError: the page loads something from another server.
    """
    output = NOTEBOOK_DIAGRAMS.sub("", output)
    if DIAGRAM in output:
        to_root = "../" * page.url.count("/")
        output = output.replace("</head>", f'<script src="{to_root}{MERMAID}"></script></head>', 1)
    if foreign := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} is not offline: it has {foreign[0]}")
    return output


def _expanded(entry: Any, root: Path) -> Any:
    if isinstance(entry, list):
        return [_expanded(one, root) for one in entry]
    if isinstance(entry, dict):
        return {name: _expanded(one, root) for name, one in entry.items()}
    if "*" not in entry:
        return entry
    pages = sorted(root.glob(entry), key=lambda path: (path.name != "README.md", path.name))
    return [path.relative_to(root).as_posix() for path in pages]
