"""`make release`: what it refuses, and what it writes beside the archives."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from release import archives, inventory, texts

import penstock

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_is_the_one_of_the_package() -> None:
    assert texts.version(ROOT) == penstock.__version__


def test_a_release_is_refused_with_all_reasons(tmp_path: Path) -> None:
    files = {
        "__init__.py": '__version__ = "1.2"\n',
        "CHANGELOG.md": "# Changes\n\n## 1.2, unreleased\n",
        "pyproject.toml": "[project]\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    tree, version, changelog, project = texts.problems(tmp_path)
    assert "not committed: CHANGELOG.md, __init__.py, pyproject.toml" in tree
    assert "__version__ is 1.2" in version
    assert "begins with '## 1.2, unreleased'" in changelog
    assert "[project.urls]" in project


def test_a_release_that_is_ready_is_not_refused() -> None:
    ready = "# Changes\n\n## 1.2.0, 2026-12-31\n\nMuch.\n\n## 1.1.0, 2026-11-30\n"
    assert texts.changelog_problem("1.2.0", ready) is None
    assert texts.version_problem("1.2.0") is texts.version_problem("1.2.0rc1") is None
    assert texts.tree_problem("") is texts.tag_problem("1.2.0", "") is None
    assert texts.project_problem('[project.urls]\nRepository = "..."\n') is None


@pytest.mark.parametrize("heading", ["## 1.1.0, 2026-12-31", "## 1.2.0", "## 1.2.01, 2026-12-31"])
def test_the_changelog_must_begin_with_the_version_and_its_day(heading: str) -> None:
    assert heading in (texts.changelog_problem("1.2.0", f"# Changes\n\n{heading}\n") or "")


def test_a_version_that_has_a_tag_is_refused() -> None:
    assert "raise __version__" in (texts.tag_problem("1.2.0", "v1.2.0") or "")


def test_builds_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter([{"one.whl": "1", "one.tar.gz": "2"}, {"one.whl": "1", "one.tar.gz": "3"}])
    monkeypatch.setattr(archives, "built", lambda *_: next(hashes))
    with pytest.raises(archives.NotReproducibleError, match=r"differ: one\.tar\.gz\.$"):
        archives.reproduced(ROOT, tmp_path)


def test_the_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "one.whl").write_bytes(b"1")
    for _ in range(2):  # the second time, there is a SHA256SUMS
        archives.write_hashes(tmp_path)
    expected = f"{hashlib.sha256(b'1').hexdigest()}  one.whl\n"
    assert (tmp_path / "SHA256SUMS").read_text() == expected


def bom(*names: str) -> dict[str, Any]:
    return {
        "metadata": {"component": {"name": "penstock", "bom-ref": "root"}},
        "components": [{"name": name, "bom-ref": f"{name}==1"} for name in names],
        "dependencies": [
            {"ref": "root", "dependsOn": [f"{name}==1" for name in names]},
            *({"ref": f"{name}==1"} for name in names),
        ],
    }


def test_the_sbom_has_what_the_lock_has_and_the_version() -> None:
    got = inventory.locked_only(
        bom("PyJWT", "pip", "duckdb_extension_avro"), frozenset({"pyjwt", "duckdb-extension-avro"})
    )
    assert got == bom("PyJWT", "duckdb_extension_avro")
    own = inventory.with_root_version(got, "1.2.0")["metadata"]["component"]
    assert (own["version"], own["purl"]) == ("1.2.0", "pkg:pypi/penstock@1.2.0")


def test_the_lock_of_the_inventory_has_the_versions_that_are_tested() -> None:
    runtime, dev = (
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("runtime.txt", "dev.txt")
    )
    assert len(runtime) > 50
    assert runtime.items() <= dev.items()
    assert inventory.Runtime.of(ROOT).names == runtime.keys()


@pytest.mark.slow
def test_two_builds_of_the_last_commit_have_the_same_bytes(tmp_path: Path) -> None:
    found = archives.reproduced(ROOT, tmp_path / "dist")
    assert sorted(path.suffix for path in found) == [".gz", ".whl"]
