"""A batch plan whose tasks do something before they write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.datasource.planning.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.spark.task import TaskAttempt


@dataclass
class WatchedPlan:
    plan: BatchPlan
    before: Callable[[TaskAttempt], None]
    """Called in each task. It must pickle."""

    def check_task(self, task: TaskAttempt) -> None:
        self.plan.check_task(task)

    def write(self, batches: Iterable[Any], task: TaskAttempt) -> CommittableMessage:
        self.before(task)
        return self.plan.write(batches, task)
