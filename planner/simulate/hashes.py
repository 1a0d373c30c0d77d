"""A load's hash ids -> keys of the chunks that a pool shares."""

from math import lcm

from planner.simulate.pool import Key
from planner.simulate.requests import Request
from planner.simulate.rules import Memory


class Hashes:
    """Ids stand for chunks of prompts; only whole blocks can be shared, so chunks are joined until they hold such."""

    def __init__(self, memory: Memory, chunk_tokens: int) -> None:
        """chunk_tokens: of one hash id"""
        self.memory = memory
        self.block = lcm(*(block for block, _ in memory.growing))
        self.joined = lcm(self.block, chunk_tokens) // chunk_tokens
        self.tokens = self.joined * chunk_tokens
        self.units = memory.grown(self.tokens)

    def keys(self, request: Request) -> list[tuple[Key, int, int]]:
        """(key, prompt tokens up to its end, units) of each part of a prompt that others may share.

        The whole blocks of a last, partial chunk are found under its own id.
        """
        scope, ids, step = request.scope, request.hash_ids, self.joined
        whole = request.input_tokens // self.tokens
        tokens, units = self.tokens, self.units
        keys: list[tuple[Key, int, int]] = [
            ((scope, ids[(i + 1) * step - 1]) if scope else ids[(i + 1) * step - 1], (i + 1) * tokens, units)
            for i in range(min(whole, len(ids) // step))
        ]
        rest = (request.input_tokens - whole * tokens) // self.block * self.block
        if rest and step == 1 and len(ids) > whole:
            key = (scope, ids[whole]) if scope else ids[whole]
            keys.append((key, whole * tokens + rest, self.memory.grown(rest)))
        return keys
