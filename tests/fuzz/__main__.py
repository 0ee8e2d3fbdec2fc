"""Damages samples at random and decodes them: `make fuzz`, or `make fuzz SECONDS=3600 SEED=7`.

A decoder returns or raises one of its own errors. Anything else is printed with the seed, the decoder and the
number of the damage, which find it again, and ends the process: so does a crash, by a signal.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import struct
import time
from itertools import count

from tests.fuzz.decoders import DECODERS, Decoder

MEMORY_BYTES_MAX = 6 * 1024**3
"""Of address space: a decoder that allocates what a damaged size claims fails."""

INTERESTING = (0, 1, -1, 2, 7, 8, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))


def damage(sample: bytes, chance: random.Random) -> bytes:
    content = bytearray(sample)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(max(len(content), 1))
        kind = chance.randrange(8)
        if kind == 0:
            content[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            content[at : at + 1] = bytes([1 << chance.randrange(8)])
        elif kind <= 4:  # most numbers of the formats are aligned
            width, code = chance.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
            at -= at % width
            number = chance.choice(INTERESTING) + chance.randrange(-2, 3)
            content[at : at + width] = struct.pack(code, number % (1 << 8 * width))
        elif kind == 5:
            del content[at:]
        elif kind == 6:
            other = chance.randrange(max(len(content), 1))
            content[at : at + 8] = content[other : other + 8]
        else:
            content[at:at] = content[at : at + chance.randrange(64)] * chance.choice((1, 1, 1, 5000))
    return bytes(content)


def fuzz(decoder: Decoder, seed: int, seconds: float, damages: int | None) -> int:
    """The number of damaged samples that were decoded."""
    for sample in decoder.samples:
        decoder.decode(sample)
    ends_at = time.monotonic() + seconds
    for number in count():
        if time.monotonic() > ends_at or number == damages:
            return number
        chance = random.Random(f"{seed}/{decoder.name}/{number}")
        content = damage(chance.choice(decoder.samples), chance)
        try:
            decoder.decode(content)
        except decoder.expected:
            continue
        except BaseException as error:
            raise SystemExit(f"seed {seed}: damage {number} of {decoder.name!r} ends in {error!r}") from error
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of each decoder")
    parser.add_argument("--damages", type=int, help="of each decoder")
    given = parser.parse_args()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    for decoder in DECODERS:
        done = fuzz(decoder, given.seed, given.seconds, given.damages)
        print(f"{decoder.name}: {done:,} damaged samples, seed {given.seed}", flush=True)


if __name__ == "__main__":
    main()
