"""Needs pypaimon, which is in an environment of its own: `make test-paimon`."""

from importlib.util import find_spec

from tests.spark.conftest import spark

__all__ = ["spark"]

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py"]
