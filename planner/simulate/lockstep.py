"""Data-parallel ranks that share experts: each step of one is a step of all, as long as the slowest's.

Between its layers every rank waits for what the others send, so one that has nothing to do takes part in steps without
requests. Only the engines' own queues and pools are apart.
source: vLLM 0.33, v1/engine/core.py (DPEngineCoreProc.run_busy_loop, execute_dummy_batch)
"""

from collections.abc import Sequence

from planner.simulate.engine import Engine


class Lockstep:
    """The ranks of one replica."""

    def __init__(self, ranks: Sequence[Engine]) -> None:
        """ranks: from now on advanced together, whichever is told to"""
        self.ranks, self.times = ranks, ranks[0].times
        for rank in ranks:
            rank.together = self.advance

    def advance(self, until: float) -> None:
        """Runs every step that is scheduled before a time, on all ranks."""
        ranks = self.ranks
        while ranks[0].began < until:
            began, now = ranks[0].began, ranks[0].now
            target = min([until, *(rank.expire(until) for rank in ranks if rank.deadlines)])
            due_s = min(rank.due_s() for rank in ranks)
            decoding = [rank for rank in ranks if rank.growth.batch]
            if due_s <= began:
                self._step()
            elif decoding:
                self._decode(decoding, min(target, due_s))
            elif began < now:
                self._sit_out(began=now, now=now)
            elif (next_s := min(target, due_s)) < until:
                self._sit_out(began=next_s, now=next_s)
            else:
                return

    def _step(self) -> None:
        """One step of all, with whatever prompts they schedule."""
        ranks = self.ranks
        prompts = [rank.schedule() for rank in ranks]
        decodes = [
            rank.growth.batch if rank.rules.mixes or not chunks else 0
            for rank, chunks in zip(ranks, prompts, strict=True)
        ]
        everywhere = sum(decodes) + sum(new for chunks in prompts for new, _ in chunks)
        if not everywhere:
            self._sit_out(began=ranks[0].now, now=ranks[0].now)
            return
        seconds = 0.0
        for rank, batch, chunks in zip(ranks, decodes, prompts, strict=True):
            kv_tokens = rank.growth.tokens if batch else 0
            if any(prompts) and (batch or chunks):
                seconds = max(seconds, self.times.mixed(batch, kv_tokens, chunks, everywhere))
            elif batch:
                seconds = max(seconds, self.times.decode(batch, kv_tokens)[0])
        for rank, batch in zip(ranks, decodes, strict=True):
            rank.complete(batch, seconds)

    def _decode(self, decoding: list[Engine], target: float) -> None:
        """Steps of decodes alone: as many as no rank's own end before, and in which the slowest rank stays so."""
        priced = [self.times.decode(rank.growth.batch, rank.growth.tokens) for rank in decoding]
        seconds, slope = max(priced)
        steps = min(rank.steps_until(target, seconds, slope) for rank in decoding)
        if not steps or any(rank.leaving for rank in self.ranks):
            self._step()
            return
        if any(first + more * (steps - 1) > seconds + slope * (steps - 1) for first, more in priced):
            steps = 1
        idle = [rank for rank in self.ranks if not rank.growth.batch]
        for rank in decoding:
            rank.stride(steps, seconds, slope)
        began, now = decoding[0].began, decoding[0].now
        for rank in idle:
            rank.busy_s += now - rank.now
            rank.began, rank.now = began, now

    def _sit_out(self, *, began: float, now: float) -> None:
        """Nothing runs until a time."""
        for rank in self.ranks:
            rank.let_go()
            rank.began, rank.now = began, now
