"""Exactly once in streams and lists: rows and the place of the last one change in one script."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ...committers.errors import ConfigurationError
from ..requests.acknowledgements import UNACKNOWLEDGED
from ..requests.results import DELIVERED, DeadLetter, Failure, Fatal, Result, Split
from .errors import of_key, result_of
from .target import RedisTarget

SCRIPT = """
local fence = redis.call('GET', KEYS[1])
local structure, maxlen, between = ARGV[1], ARGV[2], ARGV[3] == '1'
local done, last, failure = 0, nil, ''
for number = 2, #KEYS do
  local at = 4 + (number - 2) * 4
  local place, mark = ARGV[at], ARGV[at] .. ' ' .. ARGV[at + 1]
  local id, row = ARGV[at + 2], ARGV[at + 3]
  local reached = fence and string.sub(fence, 1, #place)
  if reached and place < reached then
    between = true
  elseif reached and place == reached then
    if mark ~= fence then failure = 'REWRITTEN'; break end
    between = false
  elseif between then
    failure = 'REWRITTEN'
    break
  else
    local reply
    if structure == 'list' then
      reply = redis.pcall('RPUSH', KEYS[number], row)
    elseif maxlen == '' then
      reply = redis.pcall('XADD', KEYS[number], '*', 'id', id, 'row', row)
    else
      reply = redis.pcall('XADD', KEYS[number], 'MAXLEN', '~', maxlen, '*', 'id', id, 'row', row)
    end
    if type(reply) == 'table' and reply.err then failure = reply.err; break end
    last = mark
  end
  done = done + 1
end
if last then redis.call('SET', KEYS[1], last) end
return {done, between and 1 or 0, failure}
"""
"""Skips entries at or below the fence. The entry at the fence must be the one that was written there.

A script is not rolled back when a command fails: the fence is then at the entry before.
"""


@dataclass(frozen=True, slots=True)
class Fenced:
    """An entry for `SCRIPT`."""

    fence: str
    """The key of the fence of its query."""
    key: str
    place: str
    id: str
    row: bytes

    @property
    def arguments(self) -> tuple[str | bytes, ...]:
        content = hashlib.blake2b(self.key.encode() + b"\0" + self.row, digest_size=8).hexdigest()
        return self.place, content, self.id, self.row


def fence_key(query_id: str, address: str) -> str:
    return f"penstock:fence:{query_id}:{hashlib.sha256(address.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class RedisRecords:
    """See `QueryRecords`: the fence of a query with `exactlyOnce`."""

    target: RedisTarget
    key: str

    def found(self) -> Sequence[str]:
        if not self.target.is_fenced or self.target.run("GET", self.key) is None:
            return []
        return [f"the key {self.key} of Redis at {self.target.host}:{self.target.port}"]

    def remove(self) -> None:
        self.target.run("DEL", self.key)


def place_of(batch_id: int, partition: int, row: int) -> str:
    """Return a text that sorts as rows are delivered."""
    return f"{batch_id:019}-{partition:010}-{row:019}"


def script_arguments(
    entries: Sequence[Fenced], structure: str, length_max: int | None, *, is_between: bool
) -> tuple[int | str | bytes, ...]:
    """Return the arguments of EVAL after the script.

    Args:
        is_between: what the script returned for the entries before these
    """
    keys = [entries[0].fence, *(entry.key for entry in entries)]
    settings = (structure, "" if length_max is None else length_max, "1" if is_between else "0")
    return (len(keys), *keys, *settings, *(part for entry in entries for part in entry.arguments))


def results_of(
    entries: Sequence[Fenced], reply: object, *, is_between: bool, has_columns: bool
) -> tuple[Failure | Sequence[Result], bool]:
    """Return the results, and whether the next entries are between two that were delivered before.

    Args:
        reply: of the script
        is_between: before these entries
        has_columns: see `OfKey.result`
    """
    if not (isinstance(reply, list) and len(reply) == 3):
        return UNACKNOWLEDGED, is_between
    done, is_between_now, failure = reply
    if not (isinstance(done, int) and is_between_now in (0, 1) and isinstance(failure, bytes)):
        return UNACKNOWLEDGED, is_between
    if not (0 <= done < len(entries) if failure else done == len(entries)):
        return UNACKNOWLEDGED, is_between
    left = entries[done:]
    failed = _failed(left, failure.decode(errors="replace"), has_columns=has_columns) if left else []
    return [*[DELIVERED] * done, *failed], is_between_now == 1


def _failed(left: Sequence[Fenced], failure: str, *, has_columns: bool) -> Sequence[Result]:
    """Return the result of the first entry, which has failed, and of those after it, which were not tried."""
    result: Result
    if failure == "REWRITTEN":
        result = Fatal(
            failure,
            "A part of this batch was delivered before, and its row log then written again with other rows. "
            "Remove what the batch has written, or accept that it arrives twice; then delete the key "
            f"{left[0].fence}.",
            ConfigurationError,
        )
    elif refused := of_key(failure):
        result = refused.result((left[0].key,), has_columns=has_columns)
        if isinstance(result, DeadLetter):
            rest = Split("behind", "An earlier row of the request was refused.")
            return [result, *[rest] * (len(left) - 1)]
    else:
        code, _, message = failure.partition(" ")
        result = result_of(code, message)
    return [result] * len(left)
