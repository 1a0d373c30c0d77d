"""A request in an engine, and who is told what becomes of it."""

from typing import Protocol

from planner.simulate.pool import Chunk, Key
from planner.simulate.requests import Request

Part = tuple[Key, int, int]
"""Of a prompt that others may share: its key, the prompt's tokens up to its end, its units."""


class Run:
    """A request in an engine."""

    __slots__ = (
        "cached", "chunks", "emitted", "ended", "finish_at", "first_s", "fixed", "left", "own", "parts", "preemptions",
        "prefilled", "prompt", "request", "seen_s", "shared", "started_s", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, seen_s: float, parts: list[Part]) -> None:
        self.request = request
        self.seen_s = seen_s
        """When it is in the engine's queue."""
        self.tokens = request.input_tokens + request.output_tokens
        self.prompt = request.input_tokens
        """Tokens to compute before it decodes: its input, and after a preemption what it had written too."""
        self.prefilled = 0
        self.emitted = 0
        """Tokens that it had written when it was last preempted or cancelled."""
        self.started_s = self.first_s = -1.0
        self.finish_at = -1
        """Growth.clock after its last step."""
        self.own = 0
        """Cached tokens less Growth.clock."""
        self.cached = 0
        """Prompt tokens found in the cache when it first started."""
        self.fixed = 0
        """Units that do not grow."""
        self.parts = parts
        self.chunks: list[Chunk] = []
        self.shared = 0
        """Units of its chunks."""
        self.left: Chunk | None = None
        """Its own blocks that a preemption let go."""
        self.preemptions = 0
        self.ended = False


class Observer(Protocol):
    """What is told of an engine's doings."""

    def steps(self, seconds: float, gaps: int) -> None:
        """Steps that took so long each, in which so many tokens followed another of their request."""

    def done(self, run: Run, end_s: float) -> None:
        """A request got its last token."""

    def cancelled(self, run: Run, end_s: float) -> None:
        """A request did not end in time."""
