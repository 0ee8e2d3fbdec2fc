"""Each claim of the conformance suite fails once its guard is taken away."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from servers.http_rows import HttpRows
from tests.support.lossy_requests import quiet_proxy

from penstock.committers.errors import PenstockError
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import DestinationConformance, Query
from penstock.testing.conformance.histories import history_of
from penstock.testing.conformance.partial_rows import partial_of
from penstock.testing.conformance.routes import routed_query
from penstock.testing.conformance.upserts import upserts_of

CLAIMS = [name for name in dir(DestinationConformance) if name.startswith("test_")]
FAILURES = (AssertionError, pytest.fail.Exception, PenstockError)
"""How a claim fails. Any other error says that the change of the product makes no sense."""


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_fails_without_its_guard(
    claim: str, plug_in: Path, tmp_path: Path, http_service: HttpRows, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.conformance.harnesses import HttpHarness
    from tests.conformance.mutations import MUTATIONS

    name = claim.removeprefix("test_")
    (mutation,) = [one for one in MUTATIONS.values() if name in one.claims]
    is_http = isinstance(mutation.harness, type) and issubclass(mutation.harness, HttpHarness)
    with (
        quiet_proxy(http_service.base) if is_http else nullcontext() as proxy,
        open_store(f"sqlite:///{tmp_path}/store.db") as store,
        open_store(f"sqlite:///{tmp_path}/other.db") as other_store,
    ):
        harness = mutation.harness(tmp_path, *((http_service, proxy) if is_http else ()))
        fixtures: dict[str, Any] = {
            "harness": harness,
            "query": Query(harness),
            "untidy": Query(harness),
            "decoupled": Query(harness, options={"delivery": "decoupled"}),
            "secretive": Query(harness, destination_options=harness.secret_options or None),
            "store": store,
            "other_store": other_store,
            "tmp_path": tmp_path,
            "caplog": caplog,
            **mutation.claims[name],
        }
        test = getattr(DestinationConformance(), claim)
        parameters = inspect.signature(test).parameters
        if "upserts" in parameters:
            fixtures["upserts"] = upserts_of(harness, store)
        if "partial" in parameters:
            fixtures["partial"] = partial_of(harness, store)
        if "history" in parameters:
            fixtures["history"] = history_of(harness, store)
        if "routed" in parameters:
            fixtures["routed"] = routed_query(harness, store, tmp_path)
        given = {name: fixtures[name] for name in parameters}
        with mutation.patch(), pytest.raises(FAILURES):
            test(**given)
