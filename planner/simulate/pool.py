"""The block pool of one rank: blocks counted, or with a prefix cache kept by what they hold.

Units are blocks of one group's page; where an engine gives each group memory of its own they are bytes.
source: vLLM 0.33, v1/core/block_pool.py and v1/core/kv_cache_manager.py
"""

from collections import OrderedDict

Key = tuple[str, int] | int
"""Of a chunk of prompt: its hash id, with the scope that may share it where there is one."""


class Chunk:
    """Blocks that are taken and let go together: a hashed part of prompts, or the rest of one request's."""

    __slots__ = ("key", "refs", "units")

    def __init__(self, units: int, key: Key | None) -> None:
        self.units = units
        self.key = key
        self.refs = 0


class Pool:
    """Free units alone: nothing is found again."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.shared = 0
        """Units of chunks in use, whoever uses them."""

    def spare(self, used: int) -> int:
        """Units free while requests hold so many beside shared chunks."""
        return self.units - self.shared - used


class PrefixPool(Pool):
    """A pool whose freed chunks stay findable until their blocks are taken again, oldest first.

    A chunk is found whole or not at all. Chunks of one key may exist more than once, where several requests computed
    it at the same time; the first of them is found. Blocks that hold nothing to be found are queued like any other.
    """

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.cached: dict[Key, Chunk] = {}
        self.copies: dict[Key, list[Chunk]] = {}
        self.queue: OrderedDict[Chunk, None] = OrderedDict()
        self.queue[Chunk(units, None)] = None
        self.queued = units

    def settle(self, used: int) -> None:
        """Takes from the head of the queue what requests have grown by: then it holds what is spare.

        used: units that requests hold beside shared chunks
        """
        excess = self.queued - (self.units - self.shared - used)
        while excess > 0:
            chunk = next(iter(self.queue))
            self._forget(chunk)
            if chunk.units > excess:
                chunk.units -= excess
                self.queued -= excess
                return
            del self.queue[chunk]
            self.queued -= chunk.units
            excess -= chunk.units

    def take(self, chunk: Chunk) -> None:
        """One more request uses a chunk."""
        if not chunk.refs:
            self.shared += chunk.units
            del self.queue[chunk]
            self.queued -= chunk.units
        chunk.refs += 1

    def hold(self, units: int, key: Key) -> Chunk:
        """A chunk that a request has just computed, in blocks that it held already."""
        chunk = Chunk(units, key)
        chunk.refs = 1
        self.shared += units
        if key in self.cached:
            self.copies.setdefault(key, []).append(chunk)
        else:
            self.cached[key] = chunk
        return chunk

    def free(self, chunk: Chunk) -> None:
        """One request less uses a chunk; at none it goes to the tail of the queue."""
        chunk.refs -= 1
        if not chunk.refs:
            self.shared -= chunk.units
            self.queue[chunk] = None
            self.queued += chunk.units

    def drop(self, units: int) -> Chunk | None:
        """Blocks of a request that hold nothing others can find go to the tail of the queue."""
        if not units:
            return None
        chunk = Chunk(units, None)
        self.queue[chunk] = None
        self.queued += units
        return chunk

    def _forget(self, chunk: Chunk) -> None:
        key = chunk.key
        if key is None:
            return
        chunk.key = None
        others = self.copies.get(key)
        if self.cached[key] is not chunk:
            self.copies[key].remove(chunk)
        elif others:
            self.cached[key] = others.pop(0)
        else:
            del self.cached[key]
        if others is not None and not others:
            del self.copies[key]

    def reclaim(self, chunk: Chunk) -> None:
        """A request that was preempted holds what is left of its own blocks again."""
        del self.queue[chunk]
        self.queued -= chunk.units
