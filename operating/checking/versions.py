"""Compares the installed versions with those that this version of Penstock supports."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version

from ..findings import Severity
from .report import Report

_SHOWN = ("pyspark", "pyarrow", "deltalake", "pyiceberg", "obstore")
"""Libraries of the core whose versions are always shown."""
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*\(?(?P<range>[^;()]*)\)?\s*(?:;(?P<marker>.*))?"
)
_CLAUSE = re.compile(r"(?P<operator>>=|<=|==|<|>)\s*(?P<version>[\d.]+)")
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
_PYTHON = "Programming Language :: Python :: "


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library that Penstock needs, as in the metadata of its package."""

    name: str
    supported: str
    """Its versions, such as `>=1.6,<1.7`; empty: all."""
    extra: str
    """Of Penstock that needs it; empty for the core."""

    @classmethod
    def parse(cls, text: str) -> Requirement | None:
        found = _REQUIREMENT.fullmatch(text.strip())
        if found is None:
            return None
        extra = _EXTRA.search(found["marker"] or "")
        return cls(found["name"], found["range"].strip(), extra["extra"] if extra else "")

    def accepts(self, installed: str) -> tuple[bool, bool]:
        """Return whether a version is new enough, and whether it is old enough."""
        own = _release(installed)
        new_enough = old_enough = True
        for clause in _CLAUSE.finditer(self.supported):
            operator, other = clause["operator"], _release(clause["version"])
            length = max(len(own), len(other))
            mine, theirs = _padded(own, length), _padded(other, length)
            if operator in (">=", ">", "=="):
                new_enough &= mine > theirs if operator == ">" else mine >= theirs
            if operator in ("<", "<=", "=="):
                old_enough &= mine < theirs if operator == "<" else mine <= theirs
        return new_enough, old_enough


def check_versions(report: Report, extras: Iterable[str]) -> None:
    """Add a finding for each library whose version is not supported, or one for all.

    Args:
        extras: of Penstock, which the destinations of the query need
    """
    try:
        package = distribution("penstock")
    except PackageNotFoundError:
        report.skip("versions", "Penstock runs without the metadata of its package, for example from a zip.")
        return
    problems = [*_problems_of_python(package)]
    shown = [f"penstock {package.version}", f"Python {platform.python_version()}"]
    wanted = {"", *extras}
    for one in filter(None, map(Requirement.parse, package.requires or ())):
        if one.extra not in wanted:
            continue
        try:
            installed = version(one.name)
        except PackageNotFoundError:
            continue  # what a destination cannot do without, it reports itself
        if one.extra or one.name in _SHOWN:
            shown.append(f"{one.name} {installed}")
        new_enough, old_enough = one.accepts(installed)
        if not (new_enough and old_enough):
            severity = Severity.WARNING if new_enough else Severity.ERROR
            problems.append((severity, f"{one.name} {installed} is not in {one.supported}.", one))
    for severity, text, requirement in problems:
        remedy = "" if requirement is None else f"pip install '{requirement.name}{requirement.supported}'"
        report.add(severity, "versions", text, remedy and f"Run: {remedy}")
    if not problems:
        report.ok("versions", f"{', '.join(dict.fromkeys(shown))}: all are supported.")


def extra_of(kind: str) -> str:
    """Return the extra with the name of a destination; empty if there is none."""
    try:
        provided = distribution("penstock").metadata.get_all("Provides-Extra") or ()
    except PackageNotFoundError:
        return ""
    return kind if kind in provided else ""


def _problems_of_python(package: Distribution) -> Iterator[tuple[Severity, str, Requirement | None]]:
    classifiers = package.metadata.get_all("Classifier") or ()
    tested = [_release(one.removeprefix(_PYTHON)) for one in classifiers if one.startswith(_PYTHON)]
    known = sorted(one for one in tested if len(one) == 2)
    own = sys.version_info[:2]
    if known and not known[0] <= own <= known[-1]:
        first, last = (".".join(map(str, one)) for one in (known[0], known[-1]))
        severity = Severity.ERROR if own < known[0] else Severity.WARNING
        yield severity, f"Python {platform.python_version()} is not in {first} to {last}.", None


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version before anything else, such as `rc1`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(one) for one in found[0].split(".")) if found else ()


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*numbers, *[0] * (length - len(numbers)))
