"""What the texts of the repository must say before a release."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def version(root: Path) -> str:
    """Return the version of the package, as its build takes it."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "__init__.py").read_text(), re.MULTILINE)
    assert found, "__init__.py has no __version__"
    return found[1]


def problems(root: Path) -> list[str]:
    """Return all that is not ready, one sentence each."""
    number = version(root)
    found = [
        tree_problem(git(root, "status", "--porcelain")),
        tag_problem(number, git(root, "tag", "--list", f"v{number}")),
        version_problem(number),
        changelog_problem(number, (root / "CHANGELOG.md").read_text()),
        project_problem((root / "pyproject.toml").read_text()),
    ]
    return [problem for problem in found if problem]


def tree_problem(status: str) -> str | None:
    if not status:
        return None
    return (
        f"The tree has changes that are not committed: {', '.join(line[3:] for line in status.splitlines())}."
    )


def tag_problem(number: str, tags: str) -> str | None:
    return f"There is a tag v{number} already: raise __version__ in __init__.py." if tags else None


def version_problem(number: str) -> str | None:
    if re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", number):
        return None
    return f"__version__ is {number}: a release has three numbers, maybe with rc1."


def changelog_problem(number: str, changelog: str) -> str | None:
    """The first section must be of this version, with the day of the release."""
    heading = next((line for line in changelog.splitlines() if line.startswith("## ")), "")
    if re.fullmatch(rf"## {re.escape(number)}, \d{{4}}-\d{{2}}-\d{{2}}", heading):
        return None
    return (
        f"CHANGELOG.md begins with {heading!r}: it must be '## {number}, ' and the day, such as 2026-12-31."
    )


def project_problem(project: str) -> str | None:
    """The pages of a registry link to nowhere without them."""
    if "[project.urls]" in project:
        return None
    return "pyproject.toml has no [project.urls]: name the Repository, the Documentation and the Changelog."


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip("\n")
