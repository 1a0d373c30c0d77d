"""A load's hash ids -> keys of the chunks that a pool shares."""

from itertools import repeat
from math import lcm
from typing import NamedTuple

from planner.simulate.pool import Key
from planner.simulate.requests import Request
from planner.simulate.rules import Memory


class Parts(NamedTuple):
    """What of a prompt others may share."""

    keys: tuple[Key, ...]
    """Of its whole chunks, in order."""
    last: Key | None
    """Of the whole blocks after them that ids stand for: of a partial chunk, or of chunks too few to be joined."""
    last_tokens: int


class Hashes:
    """Ids stand for chunks of prompts; only whole blocks can be shared, so chunks are joined until they hold such."""

    def __init__(self, memory: Memory, chunk_tokens: int) -> None:
        """chunk_tokens: of one hash id"""
        self.chunk = chunk_tokens
        self.block = lcm(*(block for block, _ in memory.growing))
        self.joined = lcm(self.block, chunk_tokens) // chunk_tokens
        self.tokens = self.joined * chunk_tokens
        """Of a chunk as it is shared."""
        self.units = memory.grown(self.tokens)

    def parts(self, request: Request) -> Parts:
        """What of a prompt others may share; the whole blocks of a last, partial chunk are found under the last id."""
        ids, step = request.hash_ids, self.joined
        whole = min(request.input_tokens // self.tokens, len(ids) // step)
        keys: tuple[Key, ...] = ids[:whole] if step == 1 else ids[step - 1 : whole * step : step]
        if request.scope:
            keys = tuple(zip(repeat(request.scope), keys))
        rest = min(request.input_tokens, len(ids) * self.chunk) // self.block * self.block - whole * self.tokens
        if rest <= 0:
            return Parts(keys, None, 0)
        last = ids[(whole * self.tokens + rest - 1) // self.chunk]
        return Parts(keys, (request.scope, last, rest), rest)
