"""pytest-xdist, of which a process crashed."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling


class CrashIsAFailure(LoadFileScheduling):  # type: ignore[misc]
    """A test that ends its process has failed, and the others of its file run in another process.

    pytest-xdist 3.8 would run it again and wait for ever if it ends a second process. It also hands out again
    the files that its process had finished, after which other processes wait for ever.
    """

    def remove_node(self, node: Any) -> str | None:
        """As the process of `node` ended. The test that ended it, if one ran."""
        files = self.assigned_work[node]
        pending = [(tests, name) for tests in files.values() for name, done in tests.items() if not done]
        if not pending:
            return super().remove_node(node)
        tests, crashed = pending[0]
        tests[crashed] = True
        self.assigned_work[node] = {file: some for file, some in files.items() if not all(some.values())}
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Until it has two tests: a process starts one when it knows the next."""
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)
