"""The KV memory of one rank as blocks: what a request takes of it, and how many fit."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Protocol

from planner.cache_groups import Group
from planner.kv_cache import Flight, Kind, held_blocks, prefill_blocks, reserved_blocks
from planner.units import ceil_div, scale_up


class Pool(Protocol):
    """What every engine's pool answers."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Layers whose blocks are taken together."""

    @property
    def kv_bytes(self) -> int:
        """Memory of the pool [B]; not positive where nothing is left for it."""

    @property
    def flight(self) -> Flight:
        """What the scheduler can have in flight."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes that a block costs [B]."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can take."""

    @property
    def bytes_per_token(self) -> int:
        """What one more token adds once every bounded group is full [B/token]."""

    def reserved(self, group: Group, tokens: int) -> int:
        """Blocks of one group that a request of this length is planned with."""

    def held(self, group: Group, tokens: int) -> int:
        """Blocks of one group that it holds while it decodes."""

    def reserved_blocks(self, tokens: int) -> int:
        """Blocks of all groups that it is planned with."""

    def reserved_bytes(self, tokens: int) -> int:
        """Bytes that a request of this length is planned with."""

    def held_bytes(self, tokens: int) -> int:
        """Bytes that it holds while it decodes."""

    def prefill_bytes(self, tokens: int) -> int:
        """Bytes that it holds at most while its prompt is prefilled in chunks."""

    def requests(self, tokens: int) -> int:
        """Whole requests of this length that fit."""

    def decoding(self, tokens: int) -> int:
        """Requests of this length that it holds while they decode."""


def _slope(groups: Iterable[Group]) -> int:
    """Bytes that one more token adds in these groups, each with memory of its own, rounded up at the end."""
    return ceil(sum(Fraction(group.page_bytes, group.spec.block_tokens) for group in groups))


def longest_context(pool: Pool, requests: int, most: int) -> int:
    """Longest context, up to `most`, at which this many requests fit; 0 when none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if pool.requests(middle) >= requests:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class BlockPool:
    """vLLM's pool: one set of block ids for all groups, each id costing the same bytes whichever group takes it."""

    groups: tuple[Group, ...]
    kv_bytes: int
    null_blocks: int
    flight: Flight

    @property
    def bytes_per_block(self) -> int:
        """Bytes that a block id costs, whichever group takes it."""
        return max(group.page_bytes for group in self.groups)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return max(0, self.kv_bytes) // self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can take: all but the null block."""
        return max(0, self.num_blocks - self.null_blocks)

    def reserved(self, group: Group, tokens: int) -> int:
        """Blocks of one group that a request of this length is planned with."""
        return reserved_blocks(group.spec, tokens, self.flight)

    def held(self, group: Group, tokens: int) -> int:
        """Blocks of one group that it holds while it decodes."""
        return held_blocks(group.spec, tokens, self.flight)

    def reserved_blocks(self, tokens: int) -> int:
        """Blocks of all groups that it is planned with."""
        return sum(self.reserved(group, tokens) for group in self.groups)

    def reserved_bytes(self, tokens: int) -> int:
        """The same in bytes."""
        return self.reserved_blocks(tokens) * self.bytes_per_block

    def held_bytes(self, tokens: int) -> int:
        """Bytes of the blocks that it holds while it decodes."""
        return sum(self.held(group, tokens) for group in self.groups) * self.bytes_per_block

    def prefill_bytes(self, tokens: int) -> int:
        """Bytes of the blocks that it holds at most while its prompt is prefilled in chunks."""
        return sum(prefill_blocks(group.spec, tokens, self.flight) for group in self.groups) * self.bytes_per_block

    def requests(self, tokens: int) -> int:
        """Whole requests of this length in the usable blocks."""
        return self.usable_blocks // self.reserved_blocks(tokens)

    def decoding(self, tokens: int) -> int:
        """Requests of this length, one with the blocks of its prompt's chunks: windows of the others have let go."""
        rest = self.usable_blocks * self.bytes_per_block - self.reserved_bytes(tokens)
        return 0 if rest < 0 else 1 + rest // self.held_bytes(tokens)

    @property
    def bytes_per_token(self) -> int:
        """What one more token adds once every bounded group is full [B/token]."""
        growing = (group for group in self.groups if group.growing)
        return ceil(sum(Fraction(self.bytes_per_block, group.spec.block_tokens) for group in growing))


@dataclass(frozen=True, slots=True)
class PlainPool:
    """The plain formula: each group takes bytes of its own, nothing is shared or set aside."""

    groups: tuple[Group, ...]
    kv_bytes: int
    flight: Flight

    @property
    def bytes_per_block(self) -> int:
        """One block of every growing group; of a model of bounded groups only, one of each."""
        growing = [group.page_bytes for group in self.groups if group.growing]
        return sum(growing or [group.page_bytes for group in self.groups])

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return max(0, self.kv_bytes) // self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    @property
    def bytes_per_token(self) -> int:
        """What one more token adds once every bounded group is full [B/token]."""
        return _slope(group for group in self.groups if group.growing)

    def reserved(self, group: Group, tokens: int) -> int:
        """Blocks of one group for a request of this length."""
        return plain_blocks(group, tokens)

    def held(self, group: Group, tokens: int) -> int:
        """The same: nothing is reserved beyond what is held."""
        return plain_blocks(group, tokens)

    def reserved_blocks(self, tokens: int) -> int:
        """Bytes of a request in blocks, rounded up."""
        return ceil_div(self.reserved_bytes(tokens), self.bytes_per_block)

    def reserved_bytes(self, tokens: int) -> int:
        """Blocks of each group times its page; windows and chunks hold their span, states their bytes."""
        return sum(plain_blocks(group, tokens) * group.page_bytes for group in self.groups)

    def held_bytes(self, tokens: int) -> int:
        """The same: nothing is reserved beyond what is held."""
        return self.reserved_bytes(tokens)

    def prefill_bytes(self, tokens: int) -> int:
        """The same: chunks in flight are not counted."""
        return self.reserved_bytes(tokens)

    def requests(self, tokens: int) -> int:
        """Whole requests of this length in the pool's bytes."""
        return max(0, self.kv_bytes) // self.reserved_bytes(tokens)

    def decoding(self, tokens: int) -> int:
        """The same: nothing is held beyond what a request decodes with."""
        return self.requests(tokens)


def plain_blocks(group: Group, tokens: int) -> int:
    """Blocks of one group for a request of this length, its span at most.

        ceil(min(L, s) / b); cross: ceil(s / b), whatever the decoder's length; state: 1

    group: b, its block; s, its window, chunk or encoder length [token]
    tokens: L, the whole context [token]
    returns: blocks [1]
    source: definition of windowed and chunked attention (Beltagy et al. 2020, arXiv:2004.05150)
    """
    if group.spec.kind is Kind.STATE:
        return 1
    span = group.spec.span_tokens or tokens
    return ceil_div(span if group.spec.kind is Kind.CROSS else min(tokens, span), group.spec.block_tokens)


@dataclass(frozen=True, slots=True)
class TokenPool(PlainPool):
    """SGLang's pools: slots for single tokens, for windowed tokens, and for states; a request takes its slots' bytes.

    source: SGLang 0.5.23, srt/model_executor/model_runner.py and srt/mem_cache
    """

    window_share: Decimal
    """Windowed slots per full slot."""
    state_share: Decimal
    """Share of the memory that states take where there are both."""

    @property
    def cell_parts(self) -> tuple[int, int]:
        """Memory of one token in the full groups and in the windowed ones [B]."""
        full = _slope(g for g in self.groups if g.spec.kind in (Kind.FULL, Kind.MLA, Kind.CROSS))
        return full, _slope(g for g in self.groups if g.spec.kind in (Kind.WINDOW, Kind.CHUNK))

    @property
    def _cell(self) -> int:
        """Memory of one full slot and its share of windowed ones [B]."""
        full, windows = self.cell_parts
        return full + scale_up(windows, self.window_share)

    @property
    def _states_bytes(self) -> int:
        return sum(group.page_bytes for group in self.groups if group.spec.kind is Kind.STATE)

    @property
    def bytes_per_block(self) -> int:
        """Memory of one token slot; of a model of states only, of one request."""
        return self._cell or self._states_bytes

    @property
    def token_share(self) -> Decimal:
        """Share of the memory that token slots take beside the states."""
        return 1 - self.state_share if self._states_bytes and self._cell else Decimal(1)

    @property
    def num_blocks(self) -> int:
        """Token slots of the full pool."""
        return int(max(0, self.kv_bytes) * self.token_share) // self.bytes_per_block

    def reserved_blocks(self, tokens: int) -> int:
        """Token slots of the full pool."""
        return tokens if self._cell else 1

    def limits(self, tokens: int) -> dict[str, int]:
        """Requests of this length that each of the pools holds."""
        found = {}
        if self._states_bytes:
            share = self.state_share if self._cell else Decimal(1)
            found["states"] = int(max(0, self.kv_bytes) * share) // self._states_bytes
        if self._cell:
            found["token slots"] = self.num_blocks // tokens
        if window := max((g.spec.span_tokens for g in self.groups), default=0):
            found["windowed slots"] = int(self.num_blocks * self.window_share) // min(tokens, window)
        return found

    def requests(self, tokens: int) -> int:
        """Whole requests of this length in the scarcest of the pools."""
        return min(self.limits(tokens).values())
