"""Tests that need Java's jars may be skipped without a Maven repository, and for no other reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.maven import MavenUnreachableError, classpath
from tests.support.unreachable import skipped_if_unreachable

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-api</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def project(folder: Path, version: str) -> Path:
    pom = folder / "pom.xml"
    pom.write_text(POM.format(version=version))
    return pom


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def jars(tmp_path: Path) -> str:
    """Proves that Maven works here."""
    with skipped_if_unreachable():
        return classpath(project(tmp_path, "2.0.17"))


def test_jars_that_a_project_names_are_files(jars: str) -> None:
    assert Path(jars).name == "slf4j-api-2.0.17.jar"
    assert Path(jars).is_file()


def test_the_answer_of_maven_is_kept(tmp_path: Path, jars: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert classpath(project(tmp_path, "2.0.17")) == jars


def test_jars_that_were_deleted_are_resolved_again(tmp_path: Path, jars: str) -> None:
    (kept,) = tmp_path.glob("cache/*/classpath-*")
    kept.write_text(str(tmp_path / "deleted.jar"))
    assert classpath(project(tmp_path, "2.0.17")) == jars


@pytest.mark.usefixtures("jars")
def test_a_version_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="could not be resolved"):
        classpath(project(tmp_path, "0.0.0-none"))


def test_without_a_network_maven_is_out_of_reach(tmp_path: Path) -> None:
    """With an empty folder of jars, so that none is at hand."""
    options = ["--offline", f"-Dmaven.repo.local={tmp_path / 'jars'}"]
    with pytest.raises(MavenUnreachableError, match="Maven cannot be reached"):
        classpath(project(tmp_path, "2.0.17"), options=options)


def test_without_mvn_on_the_path_maven_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MavenUnreachableError, match="no mvn on PATH"):
        classpath(project(tmp_path, "2.0.17"))
