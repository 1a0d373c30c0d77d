"""A load's hash ids -> keys of the chunks that a pool shares."""

from math import lcm

from planner.simulate.requests import Request
from planner.simulate.rules import Memory
from planner.simulate.run import Part


class Hashes:
    """Ids stand for chunks of prompts; only whole blocks can be shared, so chunks are joined until they hold such."""

    def __init__(self, memory: Memory, chunk_tokens: int) -> None:
        """chunk_tokens: of one hash id"""
        self.memory = memory
        self.block = lcm(*(block for block, _ in memory.growing))
        self.joined = lcm(self.block, chunk_tokens) // chunk_tokens
        self.tokens = self.joined * chunk_tokens
        self.units = memory.grown(self.tokens)

    def parts(self, request: Request) -> list[Part]:
        """What of a prompt others may share; the whole blocks of a last, partial chunk are found under its own id."""
        ids, step, tokens, units = request.hash_ids, self.joined, self.tokens, self.units
        whole = min(request.input_tokens // tokens, len(ids) // step)
        names = ids[step - 1 : whole * step : step] if step > 1 else ids[:whole]
        scope = request.scope
        parts: list[Part] = (
            [((scope, name), end, units) for name, end in zip(names, range(tokens, (whole + 1) * tokens, tokens))]
            if scope
            else [(name, end, units) for name, end in zip(names, range(tokens, (whole + 1) * tokens, tokens))]
        )
        rest = (request.input_tokens - whole * tokens) // self.block * self.block
        if 0 < rest < tokens and step == 1 and len(ids) > whole:
            key = (scope, ids[whole]) if scope else ids[whole]
            parts.append((key, whole * tokens + rest, self.memory.grown(rest)))
        return parts
