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
            if due_s <= began or any(rank.growth.batch for rank in ranks):
                self._step()
            elif began < now:
                self._sit_out(now)
            elif (next_s := min(target, due_s)) < until:
                self._sit_out(next_s)
            else:
                return

    def _step(self) -> None:
        """One step of all, with whatever prompts they schedule."""
        ranks = self.ranks
        prompts = [_prompts_of(rank) for rank in ranks]
        decodes = [
            rank.growth.batch if rank.rules.mixes or not chunks else 0
            for rank, chunks in zip(ranks, prompts, strict=True)
        ]
        everywhere = sum(decodes) + sum(new for chunks in prompts for new, _ in chunks)
        if not everywhere:
            self._sit_out(ranks[0].now)
            return
        seconds, mixed = 0.0, any(prompts)
        for rank, batch, chunks in zip(ranks, decodes, prompts, strict=True):
            kv_tokens = rank.growth.tokens if batch else 0
            if mixed and (batch or chunks):
                seconds = max(seconds, self.times.mixed(batch, kv_tokens, chunks, everywhere))
            elif batch:
                seconds = max(seconds, self.times.decode(batch, kv_tokens)[0])
        for rank, batch in zip(ranks, decodes, strict=True):
            rank.complete(batch, seconds)

    def _sit_out(self, until: float) -> None:
        """Nothing runs until a time."""
        for rank in self.ranks:
            rank.let_go()
            rank.began = rank.now = until


def _prompts_of(rank: Engine) -> list[tuple[int, int]]:
    if rank.due_s() <= rank.began:
        return rank.schedule()
    rank.make_room()
    return []
