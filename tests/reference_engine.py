"""vLLM's scheduler and block pool once more, naively: every block, every request, every step, and no sums.

Written from vllm/v1/core/sched/scheduler.py, v1/core/block_pool.py and v1/core/kv_cache_manager.py, and it shares
nothing with planner/simulate but the inputs. A step is scheduled when the one before it starts (asynchronous
scheduling) or ends; what a step gives is known at its end.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Times


@dataclass(eq=False)
class Block:
    """One block of the pool."""

    number: int
    refs: int = 0
    hash: Any = None


class Blocks:
    """The pool: a free queue in the order in which blocks are taken, and every hash's blocks."""

    def __init__(self, count: int) -> None:
        self.free = [Block(i) for i in range(count)]
        self.by_hash: dict[Any, list[Block]] = {}

    def find(self, hashes: Sequence[Any]) -> list[Block]:
        """The longest run of them that is cached."""
        found = []
        for each in hashes:
            if each not in self.by_hash:
                break
            found.append(self.by_hash[each][0])
        return found

    def touch(self, block: Block) -> None:
        """One more request uses it."""
        if not block.refs:
            self.free.remove(block)
        block.refs += 1

    def take(self) -> Block:
        """The head of the free queue; what it held is forgotten only now."""
        block = self.free.pop(0)
        if block.hash is not None:
            self.by_hash[block.hash].remove(block)
            if not self.by_hash[block.hash]:
                del self.by_hash[block.hash]
            block.hash = None
        block.refs = 1
        return block

    def name(self, block: Block, hashed: Any) -> None:
        """A full block becomes findable."""
        block.hash = hashed
        self.by_hash.setdefault(hashed, []).append(block)

    def release(self, blocks: list[Block]) -> None:
        """Of one request, the last one first."""
        for block in reversed(blocks):
            block.refs -= 1
            if not block.refs:
                self.free.append(block)


@dataclass(eq=False)
class Naive:
    """A request in the engine."""

    request: Request
    names: list[Any]
    """Hashes of the blocks that it fills."""
    target: int
    """Tokens to compute before it decodes."""
    blocks: list[Block] = field(default_factory=list)
    """Of the context, in order."""
    others: list[Block] = field(default_factory=list)
    """Of further groups."""
    computed: int = 0
    planned: int = 0
    """Output tokens, that of the step under way included."""
    given: int = 0
    cached: int = -1
    preemptions: int = 0
    started_s: float = -1.0
    first_s: float = -1.0
    end_s: float = -1.0
    outcome: str = ""

    @property
    def decodes(self) -> bool:
        """Its prompt is scheduled as a whole."""
        return self.computed >= self.target

    @property
    def is_over(self) -> bool:
        """All its tokens are known or under way."""
        return self.planned == self.request.output_tokens


@dataclass
class Part:
    """What one step computes of a request."""

    run: Naive
    new: int
    prior: int
    decodes: bool
    gives: bool = False


Step = list[Part]


class ReferenceEngine:
    """Runs requests to their end."""

    def __init__(self, memory: Memory, rules: Rules, times: Times, chunk_tokens: int = 0) -> None:
        self.memory, self.rules, self.times, self.chunk_tokens = memory, rules, times, chunk_tokens
        self.pool = Blocks(memory.units)
        self.slots = min(rules.max_seqs, rules.max_tokens)
        self.waiting: deque[Naive] = deque()
        self.running: list[Naive] = []
        self.preempted = False
        self.all: list[Naive] = []
        self.coming: deque[Request] = deque()

    def run(self, requests: list[Request]) -> list[Naive]:
        """Every request, in order of arrival, and what became of it."""
        run_together([self], [requests], shares=False)
        return self.all

    def seconds(self, step: Step, everywhere: int | None) -> float:
        """How long a step takes; everywhere: tokens of all engines' steps, where any has a prompt beside another."""
        decodes = [part for part in step if part.decodes]
        prompts = [(part.new, part.prior) for part in step if not part.decodes]
        kv_tokens = sum(part.prior for part in decodes)
        if prompts or (everywhere is not None and decodes):
            return self.times.mixed(len(decodes), kv_tokens, prompts, everywhere)
        return self.times.decode(len(decodes), kv_tokens)[0] if decodes else 0.0

    def end(self, step: Step, now: float) -> None:
        """What a step gave."""
        for run in (part.run for part in step if part.gives and not part.run.outcome):
            run.given += 1
            if run.given == 1:
                run.first_s = now
            if run.given == run.request.output_tokens:
                run.outcome, run.end_s = "done", now
                if run in self.running:
                    self.running.remove(run)
                    self._give_back(run)

    def next_event(self, now: float) -> float:
        """When something changes if no step runs."""
        times = [self.coming[0].arrival_s] if self.coming else []
        if self.rules.timeout_s is not None:
            times += [run.request.arrival_s + self.rules.timeout_s for run in self.waiting]
        assert times, "requests wait for nothing"
        assert min(times) > now, "the engine stands still"
        return min(times)

    def _arrive(self, now: float) -> None:
        """Requests that came up to now."""
        while self.coming and self.coming[0].arrival_s <= now:
            request = self.coming.popleft()
            run = Naive(request, self._names(request), request.input_tokens)
            self.all.append(run)
            if self.rules.max_queue is not None and len(self.waiting) >= self.rules.max_queue:
                run.outcome = "refused"
            else:
                self.waiting.append(run)

    def _cancel(self, now: float) -> None:
        """Requests whose time is over, unless their last token is under way."""
        for run in self.all:
            if self.rules.timeout_s is None or run.request.arrival_s + self.rules.timeout_s > now:
                continue
            if run.outcome or run.is_over:
                continue
            run.outcome = "cancelled"
            if run in self.running:
                self.running.remove(run)
                self._give_back(run)
            else:
                self.waiting.remove(run)

    def schedule(self, now: float) -> Step:
        """The next step, from what is known now."""
        self._arrive(now)
        self._cancel(now)
        step: Step = []
        self.preempted = False
        if self.rules.mixes:
            self._schedule_running(step, lambda _: True)
        else:
            self._schedule_running(step, lambda run: not run.decodes)
        if not self.preempted:
            self._schedule_waiting(step)
        if not self.rules.mixes and not step:
            self._schedule_running(step, lambda run: run.decodes)
        for part in step:
            if part.run.decodes:
                part.gives = True
                part.run.planned += 1
        return step

    def _room(self, step: Step) -> int:
        return self.rules.max_tokens - sum(part.new for part in step)

    def _schedule_running(self, step: Step, chosen: Callable[[Naive], bool]) -> None:
        """In the order in which they started; where blocks lack the last one lets go of its own."""
        i = 0
        while i < len(self.running) and self._room(step):
            run = self.running[i]
            i += 1
            if run.is_over or not chosen(run):
                continue
            new = 1 if run.decodes else min(run.target - run.computed, self._room(step))
            while not self._allocate(run, run.computed + new):
                victim = self.running.pop()
                self._preempt(victim)
                if victim is run:
                    return
            step.append(Part(run, new, run.computed, run.decodes))
            run.computed += new
            self._name_full(run)

    def _schedule_waiting(self, step: Step) -> None:
        while self.waiting and self._room(step) and len(self.running) < self.slots:
            run = self.waiting[0]
            hits = self._hits(run)
            cached = len(hits) * self.memory.growing[0][0]
            new = min(run.target - cached, self._room(step))
            must_fit = run.target if self.rules.reserves_prompt else cached + new
            idle = sum(not block.refs for block in hits)
            if self._units(run, must_fit) - len(hits) + idle > len(self.pool.free):
                return
            self.waiting.popleft()
            self.running.append(run)
            for block in hits:
                self.pool.touch(block)
            run.blocks = hits
            assert self._allocate(run, cached + new)
            step.append(Part(run, new, cached, decodes=False))
            run.computed = cached + new
            run.cached = cached if run.cached < 0 else run.cached
            self._name_full(run)

    def _preempt(self, run: Naive) -> None:
        """Waits before all others; one whose last token is under way only lets go of its blocks."""
        self._give_back(run)
        self.preempted = True
        if run.is_over:
            return
        run.target = run.request.input_tokens + run.planned
        run.computed = 0
        run.preemptions += 1
        self.waiting.appendleft(run)

    def _units(self, run: Naive, tokens: int) -> int:
        """Blocks that it must have for so many tokens."""
        whole = run.request.input_tokens + run.request.output_tokens
        return self.memory.grown(whole if self.rules.reserves_answer else tokens) + self.memory.fixed(whole)

    def _allocate(self, run: Naive, tokens: int) -> bool:
        """Takes the blocks that it still needs for so many tokens, or none."""
        total = self._units(run, tokens)
        if total - len(run.blocks) - len(run.others) > len(self.pool.free):
            return False
        whole = run.request.input_tokens + run.request.output_tokens
        context = -(-(whole if self.rules.reserves_answer else tokens) // self.memory.growing[0][0])
        run.blocks += [self.pool.take() for _ in range(context - len(run.blocks))]
        run.others += [self.pool.take() for _ in range(total - context - len(run.others))]
        return True

    def _give_back(self, run: Naive) -> None:
        self.pool.release(run.blocks + run.others)
        run.blocks, run.others = [], []

    def _names(self, request: Request) -> list[Any]:
        """Of every block that the request will fill: by its last token's hash id, where there is one."""
        block = self.memory.growing[0][0]
        names: list[Any] = []
        for end in range(block, request.input_tokens + request.output_tokens, block):
            chunk = (end - 1) // self.chunk_tokens if self.chunk_tokens else 0
            if self.chunk_tokens and end <= request.input_tokens and chunk < len(request.hash_ids):
                names.append((request.scope, request.hash_ids[chunk], end))
            else:
                names.append((id(request), end))
        return names

    def _hits(self, run: Naive) -> list[Block]:
        """At least the last token is computed."""
        if not self.rules.prefix_caching:
            return []
        return self.pool.find(run.names[: (run.target - 1) // self.memory.growing[0][0]])

    def _name_full(self, run: Naive) -> None:
        if self.rules.prefix_caching:
            for block, name in zip(run.blocks[: run.computed // self.memory.growing[0][0]], run.names, strict=False):
                if block.hash is None:
                    self.pool.name(block, name)


def run_together(engines: Sequence[ReferenceEngine], loads: Sequence[list[Request]], *, shares: bool = True) -> None:
    """Requests of engines whose steps begin together and are as long as the longest, to the last one's end.

    shares: experts, which see the tokens of all where any has a prompt
    """
    for engine, load in zip(engines, loads, strict=True):
        engine.coming = deque(load)
    now, under_way, end_s = 0.0, None, 0.0
    late = engines[0].rules.sees_late
    while any(engine.coming or engine.waiting or engine.running for engine in engines):
        steps = [engine.schedule(now) for engine in engines]
        if under_way is not None:  # it ends, and the one just scheduled starts
            now = end_s
            for engine, step in zip(engines, under_way, strict=True):
                engine.end(step, now)
        if any(steps):
            for part in (part for step in steps for part in step):
                part.run.started_s = now if part.run.started_s < 0 else part.run.started_s
            end_s = now + _longest_s(engines, steps, shares=shares)
        elif under_way is None and (idle := [engine for engine in engines if engine.coming or engine.waiting]):
            now = min(engine.next_event(now) for engine in idle)
        under_way = steps if any(steps) else None
        if under_way and not late:
            now, under_way = end_s, None
            for engine, step in zip(engines, steps, strict=True):
                engine.end(step, now)


def _longest_s(engines: Sequence[ReferenceEngine], steps: Sequence[Step], *, shares: bool) -> float:
    everywhere = None
    if shares and any(not part.decodes for step in steps for part in step):
        everywhere = sum(part.new for step in steps for part in step)
    return max(engine.seconds(step, everywhere) for engine, step in zip(engines, steps, strict=True))
