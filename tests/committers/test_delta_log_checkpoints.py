"""Log checkpoints of a large table take a tenth of a stream's time at most, however often they are due."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.streams import stream_in

from penstock.committers.delta import log_checkpoints
from penstock.committers.delta.log_checkpoints import LogCheckpoints
from penstock.committers.errors import RetryableError


class Log:
    """Tables whose log checkpoints take as long as they are told to, by a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.takes_s: Mapping[str, float] = {}
        self.written: list[tuple[str, float]] = []
        self.fails = False
        monkeypatch.setattr(log_checkpoints, "load", lambda uri, _options: uri)
        monkeypatch.setattr(log_checkpoints, "write_log_checkpoint", self._write)

    def _write(self, table_uri: str) -> None:
        self.written.append((table_uri, self.now_s))
        self.now_s += self.takes_s[table_uri]
        if self.fails:
            raise RetryableError("no space")


@pytest.mark.parametrize("fails", [False, True])
def test_slow_ones_take_a_tenth_of_the_time(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    log.takes_s, log.fails = {"large": 4.0, "small": 0.2}, fails
    checkpoints = LogCheckpoints(lambda: log.now_s)
    start_s = log.now_s
    while log.now_s < start_s + 400:
        log.now_s += 2.8  # twenty small batches
        checkpoints.write("large", {})
        checkpoints.write("small", {})
        checkpoints.write("small", {})
    large = [at for table, at in log.written if table == "large"]
    small = [at for table, at in log.written if table == "small"]
    assert 9 <= len(large) <= 10
    assert min(after - before for before, after in pairwise(large)) >= 40
    assert len(small) > 200


def test_a_failed_one_is_told_and_the_batch_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_table: DeltaTable) -> None:
        raise RetryableError("The log of the Delta table could not be checkpointed: no space.")

    monkeypatch.setattr(log_checkpoints, "write_log_checkpoint", fail)
    stream = stream_in(tmp_path)
    stream.committer().plan(stream.schema, properties={"delta.checkpointInterval": "2"})
    for batch_id in range(3):
        stream.commit(batch_id, [batch_id])
    token = stream.committer().token(stream.query_id)
    assert token is not None
    assert token.batch_id == 2
    assert "no space" in caplog.text
