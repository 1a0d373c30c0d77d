"""Prefix caching of one engine: what of a request's prompt the pool holds, and what the request leaves there.

Hits follow vLLM 0.33, v1/core/kv_cache_manager.py (get_computed_blocks), chunk by chunk: of a chunk that is no longer
whole, or that another prompt shares only the first blocks of, nothing is found.
"""

from dataclasses import dataclass

from planner.simulate.hashes import Hashes
from planner.simulate.pool import Held, Key, PrefixPool, Span
from planner.simulate.requests import Request
from planner.simulate.rules import Memory
from planner.simulate.run import Run


@dataclass(slots=True)
class Found:
    """What of a prompt is in the cache."""

    held: list[Held]
    chunks: int
    tokens: int
    """That need not be computed."""
    left: Span | None = None
    """Blocks of its own, from before it was preempted."""
    shared: int = 0
    """Units of the chunks."""
    idle: int = 0
    """Those of them that count as free."""


class Sharing:
    """A pool, and how prompts are kept in it."""

    def __init__(self, memory: Memory, hashes: Hashes | None) -> None:
        """hashes: how the load's hash ids name chunks; None: a request finds only what it left itself"""
        self.memory, self.hashes = memory, hashes
        self.pool = PrefixPool(memory.units)

    def cached_tokens(self, request: Request) -> int:
        """Prompt tokens of a request that it would find here."""
        if self.hashes is None or not request.hash_ids:
            return 0
        return self.pool.find(self.hashes.parts(request).keys)[1] * self.hashes.tokens

    def find(self, run: Run) -> Found:
        """What a request that starts finds; at least a prompt's last token, and so its block, is computed."""
        found = Found([], 0, 0) if run.parts is None or self.hashes is None else self._chunks(run, self.hashes)
        for span, count in found.held:
            found.shared += count * span.each
            if not span.refs:
                found.idle += count * span.each
        if run.left is not None and found.chunks == run.chunks and run.left in self.pool.queue:
            block, weight = self.memory.growing[0]
            found.left = run.left
            found.tokens += run.left.units // weight * block
        return found

    def _chunks(self, run: Run, hashes: Hashes) -> Found:
        keys, last, last_tokens = run.parts or ((), None, 0)
        held, chunks = self.pool.find(keys)
        tokens, final = chunks * hashes.tokens, hashes.tokens
        if last is not None and chunks == len(keys) and (span := self.pool.cached.get(last)) is not None:
            held.append((span, 1))
            chunks, tokens, final = chunks + 1, tokens + last_tokens, last_tokens
        if tokens == run.prompt:
            tokens -= hashes.block
            if final == hashes.block:  # else the chunk is shared, and its last block computed anew
                chunks -= 1
                span, count = held.pop()
                if count > 1:
                    held.append((span, count - 1))
        return Found(held, chunks, tokens)

    def take(self, run: Run, found: Found) -> None:
        """A request starts with what it found."""
        run.shared = found.shared
        self.pool.take(found.held)
        if found.left is not None:
            self.pool.reclaim(found.left)
        run.left = None
        run.held, run.chunks, run.prefilled = found.held, found.chunks, found.tokens

    def keep(self, run: Run) -> int:
        """Makes what is computed of its prompt findable, as the engine does when it schedules it; returns its units."""
        hashes, parts = self.hashes, run.parts
        if hashes is None or parts is None:
            return 0
        before, (keys, last, last_tokens) = run.shared, parts
        chunks, known = run.chunks, len(keys)
        if chunks < known and (whole := min(run.prefilled // hashes.tokens, known)) > chunks:
            self._hold(run, keys[chunks:whole], hashes.units)
            chunks = whole
        if chunks == known and last is not None and run.prefilled >= known * hashes.tokens + last_tokens:
            self._hold(run, (last,), self.memory.grown(last_tokens))
        return run.shared - before

    def _hold(self, run: Run, keys: tuple[Key, ...], each: int) -> None:
        count = len(keys)
        run.chunks += count
        run.shared += count * each
        pool, made = self.pool, run.made
        if made is not None and made.refs == 1 and made.each == each and keys[0] not in pool.cached:
            _, before = run.held[-1]
            if len(made.keys) == before:  # all of it, and nobody else has used it since
                pool.extend(made, keys)
                run.held[-1] = made, before + count
                return
        run.made = pool.hold(keys, each)
        run.held.append((run.made, count))

    def release(self, run: Run, own: int, *, again: bool) -> int:
        """A request lets go of everything; returns the units that none uses any longer.

        own: units that it holds beside its chunks
        again: it will start again, and find those of its own blocks that are full and not taken by then
        """
        if again and len(self.memory.growing) == 1 and not run.fixed:
            block, weight = self.memory.growing[0]
            full = run.prefilled // block * weight - run.shared
            self.pool.drop(own - full)
            run.left = self.pool.drop(full)
        else:
            self.pool.waste(own)
        if run.parts is None:
            return own
        freed = own + self.pool.free(run.held)
        run.held, run.made, run.shared = [], None, 0
        return freed
