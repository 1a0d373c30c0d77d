"""A request in an engine, and who is told what becomes of it."""

from typing import Protocol

from planner.simulate.hashes import Parts
from planner.simulate.pool import Held, Span
from planner.simulate.requests import Request


class Run:
    """A request in an engine."""

    __slots__ = (
        "cached", "chunks", "emitted", "ended", "finish_at", "first_s", "fixed", "held", "left", "own", "parts",
        "preemptions", "prefilled", "prompt", "request", "seen_s", "shared", "started_s", "tokens",
    )  # fmt: skip

    own: int
    """Cached tokens less Growth.clock, while it decodes."""
    finish_at: int
    """Growth.clock after its last step, while it decodes."""

    def __init__(self, request: Request, seen_s: float, parts: Parts | None) -> None:
        self.request = request
        self.seen_s = seen_s
        """When it is in the engine's queue."""
        self.prompt = request.input_tokens
        """Tokens to compute before it decodes: its input, and after a preemption what it had written too."""
        self.tokens = self.prompt + request.output_tokens
        self.prefilled = 0
        self.emitted = 0
        """Tokens that it had written when it was last preempted or cancelled."""
        self.started_s = self.first_s = -1.0
        self.cached = 0
        """Prompt tokens found in the cache when it first started."""
        self.fixed = 0
        """Units that do not grow."""
        self.parts = parts
        """None: it shares nothing."""
        self.held: list[Held] = []
        """Chunks of its prompt that it uses."""
        self.chunks = 0
        """How many, a last and partial one included."""
        self.shared = 0
        """Units of them."""
        self.left: Span | None = None
        """Its own full blocks that a preemption let go."""
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
