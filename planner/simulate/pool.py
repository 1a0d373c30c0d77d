"""The block pool of one rank: blocks counted, or with a prefix cache kept by what they hold.

Units are blocks of one group's page; where an engine gives each group memory of its own they are bytes.
source: vLLM 0.33, v1/core/block_pool.py and v1/core/kv_cache_manager.py
"""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import takewhile
from operator import eq

Key = Hashable
"""Of a chunk of prompt: its hash id, with the scope that may share it where there is one."""


class Span:
    """Chunks of one prompt that follow each other and are used by the same requests; or blocks that hold none.

    As one they are taken, let go and queued; where a prompt shares only the first of them, the span is cut in two.
    In the queue, its units may be more than those of its chunks: the rest of a chunk that is no longer whole.
    """

    __slots__ = ("each", "keys", "refs", "rest", "units")

    def __init__(self, keys: tuple[Key, ...], each: int, units: int, refs: int = 0) -> None:
        self.keys = keys
        self.each = each
        """Units of a chunk."""
        self.units = units
        self.refs = refs
        self.rest: Span | None = None
        """What was cut off its end, used by those that used the whole."""


Held = tuple[Span, int]
"""What a request holds of a prompt: a span, with what was cut off it since, and how many chunks."""


class Pool:
    """Free units alone: nothing is found again."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.shared = 0
        """Units of chunks in use, whoever uses them."""


class PrefixPool(Pool):
    """A pool whose freed chunks stay findable until their blocks are taken again, oldest first.

    A chunk is found whole or not at all. Chunks of one key may exist more than once, where a request had to compute
    what was there already; the first of them is found. Blocks that hold nothing to be found are queued like any other.
    """

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.cached: dict[Key, Span] = {}
        """By their first chunk's key."""
        self.copies: dict[Key, list[Span]] = {}
        """Further ones of a key, in order of age."""
        self.queue: OrderedDict[Span, None] = OrderedDict()
        """In use by none, the one whose blocks are taken next first; of a span, the last chunk's blocks first."""
        self.queue[Span((), 0, units)] = None
        self.wasted: Span | None = None
        """The youngest blocks that nobody will ask for."""
        self.queued = units
        """Units in the queue; right after `settle` those that are free."""

    def settle(self, used: int) -> None:
        """Takes from the head of the queue what requests have grown by: then it holds what is free.

        used: units that requests hold beside shared chunks
        """
        excess = self.queued + self.shared + used - self.units
        if excess <= 0:
            return
        self.queued -= excess
        queue = self.queue
        while excess:
            span, _ = queue.popitem(last=False)
            if span.units > excess:
                self._shorten(span, excess)
                return
            excess -= span.units
            if span.keys:
                self._unlist(span)

    def _shorten(self, span: Span, units: int) -> None:
        """Takes blocks from a span's end; what is left stays at the head of the queue."""
        span.units -= units
        self.queue[span] = None
        self.queue.move_to_end(span, last=False)
        if span.keys:
            whole = span.units // span.each
            if not whole:
                self._unlist(span)
            span.keys = span.keys[:whole]

    def find(self, keys: tuple[Key, ...]) -> tuple[list[Held], int]:
        """(what the pool holds of a prompt's chunks from its first on, how many chunks these are)."""
        found: list[Held] = []
        at, cached = 0, self.cached
        while at < len(keys):
            span = cached.get(keys[at])
            if span is None or any(span is other for other, _ in found):  # the latter only where ids are not chained
                break
            count = len(span.keys)
            if span.keys != keys[at : at + count]:
                count = sum(1 for _ in takewhile(bool, map(eq, span.keys, keys[at:])))
                found.append((span, count))
                return found, at + count
            found.append((span, count))
            at += count
        return found, at

    def take(self, found: list[Held]) -> None:
        """One more request uses what was found; the last span is cut where only the first of its chunks were."""
        for i, (span, count) in enumerate(found):
            if span.units > count * span.each:
                span = self._cut(span, count)
                found[i] = span, count
            if not span.refs:
                self.shared += span.units
                del self.queue[span]
                self.queued -= span.units
            span.refs += 1

    def _cut(self, span: Span, count: int) -> Span:
        """The first chunks of a span as one of their own."""
        keys, each, units = span.keys, span.each, count * span.each
        if span.refs:  # requests hold the span, so that it must be the first part
            span.keys, span.units = keys[:count], units
            rest = Span(keys[count:], each, (len(keys) - count) * each, span.refs)
            rest.rest, span.rest = span.rest, rest
            self._list(rest)
            return span
        first = Span(keys[:count], each, units)
        self.queue[first] = None
        if self.cached[keys[0]] is span:
            self.cached[keys[0]] = first
        else:
            others = self.copies[keys[0]]
            others[others.index(span)] = first
        span.keys, span.units = keys[count:], span.units - units  # it keeps its place in the queue: its end goes first
        if span.keys:
            self._list(span)
        return first

    def hold(self, keys: tuple[Key, ...], each: int) -> Span:
        """Chunks that a request has just computed, in blocks that it held already."""
        span = Span(keys, each, len(keys) * each, 1)
        self.shared += span.units
        self._list(span)
        return span

    def extend(self, span: Span, keys: tuple[Key, ...]) -> None:
        """More chunks that follow those of a span, just computed by the one request that holds it."""
        more = len(keys) * span.each
        span.keys += keys
        span.units += more
        self.shared += more

    def free(self, held: list[Held]) -> int:
        """One request less uses chunks: those that none does go to the tail of the queue, the last ones first.

        returns: their units
        """
        freed, queue = 0, self.queue
        for span, count in reversed(held):
            pieces = [span]
            while (count := count - len(span.keys)) > 0 and span.rest is not None:
                span = span.rest
                pieces.append(span)
            for piece in reversed(pieces):
                piece.refs -= 1
                if not piece.refs:
                    piece.rest = None
                    queue[piece] = None
                    freed += piece.units
        self.shared -= freed
        self.queued += freed
        return freed

    def drop(self, units: int) -> Span | None:
        """Blocks of a request that hold nothing others can find go to the tail of the queue."""
        if not units:
            return None
        span = Span((), 0, units)
        self.queue[span] = None
        self.queued += units
        return span

    def waste(self, units: int) -> None:
        """The same for blocks that nobody will ask for: one span of them is enough at the tail."""
        if self.wasted is not None and next(reversed(self.queue), None) is self.wasted:
            self.wasted.units += units
            self.queued += units
        else:
            self.wasted = self.drop(units)

    def reclaim(self, span: Span) -> None:
        """A request that was preempted holds what is left of its own blocks again."""
        del self.queue[span]
        self.queued -= span.units

    def _list(self, span: Span) -> None:
        """Makes it findable, after others of its first key."""
        if self.cached.setdefault(span.keys[0], span) is not span:
            self.copies.setdefault(span.keys[0], []).append(span)

    def _unlist(self, span: Span) -> None:
        key = span.keys[0]
        others = self.copies.get(key)
        if others is None:
            del self.cached[key]
            return
        if self.cached[key] is span:
            self.cached[key] = others.pop(0)
        else:
            others.remove(span)
        if not others:
            del self.copies[key]
