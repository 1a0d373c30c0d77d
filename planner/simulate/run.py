"""A request in an engine, how long an engine's steps take, and who is told what becomes of it."""

from typing import Protocol

from planner.simulate.hashes import Parts
from planner.simulate.pool import Held, Span
from planner.simulate.quantiles import Gaps
from planner.simulate.requests import Request


class Run:
    """A request in an engine. What most never change is the class's own, which makes one in half the time."""

    prefilled = 0
    """Tokens of it whose keys and values are cached, until it decodes."""
    emitted = 0
    """Tokens that it had written when it was last preempted or cancelled."""
    started_s = -1.0
    first_s = -1.0
    end_s = -1.0
    """With its last token, or when it was cancelled."""
    own: int
    """Cached tokens less Growth.clock, while it decodes."""
    finish_at: int
    """Growth.clock after its last step, while it decodes."""
    cached = 0
    """Prompt tokens found in the cache when it first started."""
    fixed = 0
    """Units that do not grow."""
    held: list[Held]
    """Chunks of its prompt that it uses, if it shares any."""
    made: Span | None = None
    """The last of these, if this request computed it."""
    chunks = 0
    """How many, a last and partial one included."""
    shared = 0
    """Units of them."""
    left: Span | None = None
    """Its own full blocks that a preemption let go."""

    def __init__(self, request: Request, seen_s: float, parts: Parts | None) -> None:
        """seen_s: when it is in the engine's queue
        parts: of its prompt; None: it shares nothing
        """
        self.request, self.seen_s, self.parts, self.preemptions = request, seen_s, parts, 0
        if parts is not None:
            self.held = []
        self.prompt = prompt = request.input_tokens
        """Tokens to compute before it decodes: its input, and after a preemption what it had written too."""
        self.tokens = prompt + request.output_tokens


class Times(Protocol):
    """How long steps take."""

    def decode(self, batch: int, kv_tokens: int) -> tuple[float, float]:
        """(a step of decodes alone [s], what the next one takes more [s]).

        batch: requests that decode, at least one
        kv_tokens: cached tokens of all of them
        """

    def mixed(self, batch: int, kv_tokens: int, prompts: list[tuple[int, int]], everywhere: int | None = None) -> float:
        """A step of prompts, with decodes or alone [s].

        batch: requests that decode; none where decodes wait
        kv_tokens: cached tokens of all of them
        prompts: (new tokens, cached ones before them) of each chunk
        everywhere: tokens of all data-parallel ranks' steps, which the experts see; None: each does as much
        """


class Observer(Protocol):
    """What is told of an engine's doings."""

    gaps: Gaps
    """Between tokens."""

    def done(self, runs: list[Run]) -> None:
        """Requests got their last token."""

    def cancelled(self, run: Run) -> None:
        """A request did not end in time."""
