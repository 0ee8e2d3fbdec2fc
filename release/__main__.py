"""`python -m release checks`, then `python -m release archives`; see the target `release` in the Makefile."""

from __future__ import annotations

import sys
from pathlib import Path

from . import archives, inventory, texts

ROOT = Path(__file__).resolve().parent.parent


def checks() -> None:
    """Before anything that takes minutes: say all that is not ready."""
    problems = texts.problems(ROOT)
    if problems:
        sys.exit("Not ready for a release:\n" + "\n".join(f"  - {one}" for one in problems))
    print(f"Ready for a release: {texts.version(ROOT)}")


def build() -> None:
    """Fill dist/ anew."""
    version, dist = texts.version(ROOT), ROOT / "dist"
    epoch = archives.commit_epoch(ROOT)
    built = archives.reproduced(ROOT, dist)
    print(f"Built twice, with the same hashes: {', '.join(path.name for path in built)}")
    archives.check(ROOT, built)
    runtime = inventory.Runtime.of(ROOT)
    inventory.write_sbom(ROOT, runtime, version, dist / f"penstock-{version}.cdx.json", epoch)
    inventory.write_licences(ROOT, runtime, dist / f"penstock-{version}.licences.txt")
    archives.write_hashes(dist)
    print(NEXT.format(version=version, archives=" ".join(f"dist/{path.name}" for path in built)))


NEXT = """
dist/ is complete, and nothing was uploaded. What is left to do:
  git tag --sign v{version} --message "Penstock {version}" && git push origin v{version}
  .venv-release/bin/twine upload {archives}
  attach the other files of dist/ to the release of the tag
  docker build --file deploy/Dockerfile --tag <registry>/penstock:{version} .
"""

if __name__ == "__main__":
    {"checks": checks, "archives": build}[sys.argv[1]]()
