"""deploy/ and the dashboard: schemas, systemd's own checks; commands, variables and metrics exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import typer
import yaml
from deploy import grafana
from tests.test_docs import ALERTS, expressions, served_metrics

from penstock import __version__
from penstock.cli.app import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SERVICES = sorted((DEPLOY / "systemd").glob("*.service"))
VERSIONS = ("1.30", kubernetes_validate.latest_version())
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def manifests() -> Iterator[dict[str, Any]]:
    for path in KUBERNETES.glob("*.yaml"):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


MANIFESTS = {f"{one['kind']} {one['metadata']['name']}": one for one in manifests()}
PODS = {
    name: (one["spec"]["jobTemplate"] if one["kind"] == "CronJob" else one)["spec"]["template"]["spec"]
    for name, one in MANIFESTS.items()
    if one["kind"] in ("CronJob", "Deployment")
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_schema_of_kubernetes(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize("wrong", [{"replica": 2}, {"replicas": "two"}])
def test_a_misspelled_field_would_be_noticed(wrong: dict[str, object]) -> None:
    manifest = deepcopy(MANIFESTS["Deployment penstock-deliver"])
    manifest["spec"].update(wrong)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_kustomize_takes_every_file_but_the_example_of_secrets() -> None:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml", "secrets.example.yaml"}
    assert set(listed) == files


def test_the_version_of_image_and_archives_is_the_one_of_the_package() -> None:
    pages = (ROOT / "docs" / name for name in ("production.md", "managed-spark.md"))
    texts = [path.read_text() for path in (*KUBERNETES.iterdir(), DEPLOY / "Dockerfile", *pages)]
    named = re.findall(r"(?:penstock[:-]|penstock==|newTag: )(\d+\.\d+\.\d+)", "\n".join(texts))
    assert len(named) > 3
    assert set(named) == {__version__}


def test_what_a_manifest_names_is_there() -> None:
    """Secrets with their keys, the service account, and the pods of selectors and probes."""
    text = "\n".join(json.dumps(one) for one in MANIFESTS.values())
    secrets = {name.split()[1]: one["stringData"] for name, one in MANIFESTS.items() if "Secret " in name}
    assert set(re.findall(r'"secretRef": {"name": "(\S+?)"', text)) == {"penstock"}
    for name, key in re.findall(r'"secretKeyRef": {"name": "(\S+)", "key": "(\S+)"', text):
        assert key in secrets[name]
    for name, pod in PODS.items():
        assert f"ServiceAccount {pod['serviceAccountName']}" in MANIFESTS
        (container,) = pod["containers"]
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", ())}
        probes = [probe for key, probe in container.items() if key.endswith("Probe")]
        assert {probe["httpGet"]["port"] for probe in probes} == set(ports)
        assert set(ports.values()) <= set(container["args"])
        if name.startswith("Deployment"):
            labels = MANIFESTS[name]["spec"]["template"]["metadata"]["labels"]
            assert MANIFESTS[name]["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert len(probes) == 2
    known = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in MANIFESTS.values()
        if "Deployment" in one["kind"]
    ]
    budget = MANIFESTS["PodDisruptionBudget penstock-deliver"]["spec"]["selector"]["matchLabels"]
    for selector in (budget, MANIFESTS["Service penstock-ui"]["spec"]["selector"]):
        assert any(selector.items() <= labels.items() for labels in known)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_without_rights(name: str) -> None:
    pod = PODS[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert f"USER {pod['securityContext']['runAsUser']}:" in (DEPLOY / "Dockerfile").read_text()


def test_variables_of_the_secrets_are_read_by_the_command_line() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "cli").rglob("*.py"))
    assert [name for name in MANIFESTS["Secret penstock"]["stringData"] if name not in code] == []


def started() -> Iterator[list[str]]:
    """The arguments of every `penstock` that deploy/ starts."""
    for pod in PODS.values():
        yield pod["containers"][0]["args"]
    for path in SERVICES:
        _, _, line = path.read_text().partition("ExecStart=/opt/penstock/bin/penstock ")
        if line:
            yield shlex.split(line.splitlines()[0])


@pytest.mark.parametrize("words", list(started()), ids=" ".join)
def test_a_command_that_is_started_exists(words: list[str]) -> None:
    command, *arguments = words
    COMMANDS[command].make_context(command, list(arguments))


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["deliver"].make_context("deliver", ["--metric-port", "9108"])


def test_systemd_takes_the_units_and_finds_them_hardened(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    units = sorted((DEPLOY / "systemd").iterdir())
    for unit in units:
        (tmp_path / unit.name).write_text(re.sub("ExecStart=\\S+", "ExecStart=/bin/true", unit.read_text()))
    verify = ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in units)]
    ended = subprocess.run(verify, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    rate = ["systemd-analyze", "security", "--offline=true", "--threshold=20"]
    hardened = [str(tmp_path / one.name) for one in SERVICES if one.name != "penstock-stream.service"]
    rated = subprocess.run([*rate, *hardened], capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout


def test_the_image_has_a_python_and_extras_that_exist() -> None:
    text, project = (DEPLOY / "Dockerfile").read_text(), (ROOT / "pyproject.toml").read_text()
    (python,) = re.findall(r"FROM python:([\d.]+)-", text)
    assert f"Python :: {python}" in project
    (extras,) = re.findall(r"EXTRAS=(\S+)", text)
    assert [one for one in extras.split(",") if not re.search(f"^{one} = ", project, re.MULTILINE)] == []


# The dashboard --------------------------------------------------------------------------------------

DASHBOARD = grafana.dashboard()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_file_for_grafana_is_the_one_of_the_code() -> None:
    path = ALERTS.with_name("grafana-dashboard.json")
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        path.write_text(grafana.text())
    assert path.read_text() == grafana.text(), "run it with PENSTOCK_UPDATE_DOCS=1"


def queries() -> list[str]:
    """PromQL of the panels and of the dashboard's variables."""
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return asked + [
        one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]


def test_the_dashboard_shows_metrics_that_are_served() -> None:
    asked = set(re.findall(r"\bpenstock_\w+", "\n".join(queries())))
    assert len(asked) > 20
    assert asked - served_metrics() == set()


@pytest.mark.parametrize("expression", [*queries(), *expressions()])
def test_prometheus_can_parse_an_expression(expression: str) -> None:
    text = re.sub(r"^label_values\((.*), \w+\)$", r"\1", expression.strip().removeprefix(">"))
    promql_parser.parse(text.replace("$__rate_interval", "5m").replace("$__range", "1h"))


def test_a_wrong_expression_would_be_noticed() -> None:
    with pytest.raises(ValueError, match="invalid promql query"):
        promql_parser.parse("sum by (query_name) rate(penstock_delivered_rows_total[5m])")


def test_each_panel_is_placed_and_says_what_it_shows() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert [panel["title"] for panel in PANELS if not panel.get("description")] == []
    squares = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(squares) == len(set(squares)), "panels overlap"
    assert max(x for x, _ in squares) < 24
