"""The packages that `penstock[all]` brings along: as an SBOM, and with the texts of their licences.

They come from `.venv-runtime`, which has the versions that the tests have run with.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Runtime:
    """An environment, and the names in its lock: what installs it, such as pip, is there too."""

    python: Path
    names: frozenset[str]

    @classmethod
    def of(cls, root: Path) -> Runtime:
        lock = (root / "requirements" / "runtime.txt").read_text()
        names = re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)
        return cls(root / ".venv-runtime" / "bin" / "python", frozenset(map(canonicalize_name, names)))


def write_sbom(root: Path, runtime: Runtime, version: str, path: Path, epoch: str) -> None:
    """Write an SBOM of CycloneDX."""
    tool = root / ".venv-release" / "bin" / "cyclonedx-py"
    project = ["--pyproject", str(root / "pyproject.toml"), "--mc-type", "library"]
    command = [str(tool), "environment", *project, "--output-reproducible", str(runtime.python)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    text = subprocess.run(
        command, env=environment, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True
    ).stdout
    bom = with_root_version(locked_only(json.loads(text), runtime.names), version)
    path.write_text(json.dumps(bom, indent=2, ensure_ascii=False) + "\n")


def locked_only(bom: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Leave out components that the lock does not name, and what depends on them."""
    kept = [one for one in bom["components"] if canonicalize_name(one["name"]) in names]
    left_out = {one["bom-ref"] for one in bom["components"]} - {one["bom-ref"] for one in kept}
    needs = [
        {
            **one,
            **(
                {"dependsOn": [to for to in one["dependsOn"] if to not in left_out]}
                if "dependsOn" in one
                else {}
            ),
        }
        for one in bom["dependencies"]
        if one["ref"] not in left_out
    ]
    return {**bom, "components": kept, "dependencies": needs}


def with_root_version(bom: dict[str, Any], version: str) -> dict[str, Any]:
    """The tool does not know a version that is read from the code."""
    own = {**bom["metadata"]["component"], "version": version, "purl": f"pkg:pypi/penstock@{version}"}
    return {**bom, "metadata": {**bom["metadata"], "component": own}}


def write_licences(root: Path, runtime: Runtime, path: Path) -> None:
    """Write name, version, licence and its text of each package.

    Raises:
        AssertionError: a package does not say its licence.
    """
    tool = root / ".venv-release" / "bin" / "pip-licenses"
    command = [str(tool), "--python", str(runtime.python), "--format", "json", "--with-urls"]
    texts = ["--with-system", "--with-license-file", "--with-notice-file", "--no-license-path"]
    text = subprocess.run(
        [*command, *texts], check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True
    ).stdout
    packages = [one for one in json.loads(text) if canonicalize_name(one["Name"]) in runtime.names]
    unknown = [one["Name"] for one in packages if one["License"] == "UNKNOWN"]
    assert not unknown, f"These packages do not say their licence: {', '.join(unknown)}. Look it up."
    path.write_text(HEAD + "\n".join(licence(one) for one in packages))


HEAD = "What `pip install 'penstock[all]'` brings along. None of it is part of Penstock's archives.\n\n"


def licence(package: dict[str, str]) -> str:
    texts = [package[key].strip() for key in ("LicenseText", "NoticeText") if package[key] != "UNKNOWN"]
    title = f"{package['Name']} {package['Version']}: {package['License']}"
    return "\n".join([title, package["URL"], "-" * len(title), *texts, ""]) + "\n"
