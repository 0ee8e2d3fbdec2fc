"""The metrics that a process serves."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def metrics_url(process: subprocess.Popen[str]) -> str:
    """Wait until the process has logged it."""
    assert process.stderr is not None
    return next(found[0] for line in process.stderr if (found := re.search(r"http://\S+", line)))


def samples(url: str) -> list[Any]:
    """All samples without the buckets of histograms."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [sample for sample in found if "le" not in sample.labels]


def metrics_of(url: str, table: str) -> dict[str, float]:
    """The metrics of the one stream into a table."""
    return {sample.name: sample.value for sample in samples(url) if sample.labels.get("table") == table}
