"""The block pool: the walk-through block by block, and what always holds under random use, hostile ids included."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.growth import Growth
from planner.simulate.hashes import Hashes
from planner.simulate.pool import Held, PrefixPool
from planner.simulate.requests import Request
from planner.simulate.rules import Memory
from planner.simulate.run import Run
from tests.reference_engine import Block, Blocks


def test_the_walk_through_block_by_block() -> None:
    """Blocks of 4 tokens, four of them, and blocks of a request released last block first."""
    pool = Blocks(4)
    first = [pool.take() for _ in range(3)]  # 12 tokens
    for block, name in zip(first, "abc", strict=True):
        pool.name(block, name)
    second = pool.find("ab")  # the first 8 tokens, and 3 more
    for block in second:
        pool.touch(block)
    second.append(pool.take())
    assert numbers(second) == [0, 1, 3]
    assert [block.refs for block in first] == [2, 2, 1]
    assert second[2].hash is None, "not full"
    pool.release(first)
    assert numbers(pool.free) == [2]
    assert pool.find("abc") == first, "its hash stays"
    pool.release(second)
    assert numbers(pool.free) == [2, 3, 1, 0]
    third = pool.find("ab")
    for block in third:
        pool.touch(block)
    assert numbers(pool.free) == [2, 3]
    third += [pool.take(), pool.take()]  # PPPP QQQQ
    assert numbers(third) == [0, 1, 2, 3]
    assert pool.find("abc") == third[:2], "block 2 lost its old hash when it was taken"


def numbers(blocks: list[Block]) -> list[int]:
    return [block.number for block in blocks]


def test_the_walk_through_in_counts() -> None:
    pool = PrefixPool(4)
    first: list[Held] = [(pool.hold(("a", "b", "c"), 1), 3)]
    pool.settle(0)
    second, chunks = pool.find(("a", "b"))
    assert chunks == 2
    pool.take(second)
    pool.settle(1)
    assert (pool.shared, pool.queued) == (3, 0)
    assert pool.free(first) == 1
    assert pool.find(("a", "b", "c"))[1] == 3
    pool.drop(1)
    assert pool.free(second) == 2
    assert [(span.keys, span.units) for span in pool.queue] == [(("c",), 1), ((), 1), (("a", "b"), 2)]
    third, chunks = pool.find(("a", "b", "p", "q"))
    assert chunks == 2
    pool.take(third)
    assert pool.queued == 2
    pool.settle(2)
    assert (pool.shared, pool.queued) == (2, 0)
    assert pool.find(("a", "b", "c"))[1] == 2


def checked(pool: PrefixPool, used: int) -> None:
    """Queue, chunks in use and other units are the pool; nothing in use is queued; what can be found is not gone."""
    pool.settle(used)
    assert pool.queued == sum(span.units for span in pool.queue)
    assert pool.queued + pool.shared + used == pool.units
    assert all(not span.refs for span in pool.queue)
    listed = [*pool.cached.values(), *(span for others in pool.copies.values() for span in others)]
    assert pool.shared == sum(span.units for span in listed if span.refs)
    assert all(span.refs > 0 or span in pool.queue for span in listed)


@given(st.randoms(use_true_random=True), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_no_block_is_lost_whatever_the_ids(source: Random, each: int, ids: int) -> None:
    """Ids at random, not chained: the same one twice in a prompt, or after different ones."""
    pool = PrefixPool(12 * each)
    users: list[tuple[list[Held], int]] = []
    for _ in range(60):
        if users and source.random() < 0.4:
            held, own = users.pop(source.randrange(len(users)))
            pool.drop(own)
            pool.free(held)
        else:
            used = sum(own for _, own in users)
            pool.settle(used)
            keys = tuple(source.randint(0, ids) for _ in range(source.randint(1, 5)))
            held, chunks = pool.find(keys)
            assert chunks == sum(count for _, count in held) <= len(keys)
            idle = {span: span.units for span, _ in held if not span.refs}
            own = source.randint(0, 3)
            if pool.queued < sum(idle.values()) + (len(keys) - chunks) * each + own:
                continue
            pool.take(held)
            if chunks < len(keys):
                held.append((pool.hold(keys[chunks:], each), len(keys) - chunks))
            users.append((held, own))
        checked(pool, sum(own for _, own in users))
    for held, own in users:
        pool.drop(own)
        pool.free(held)
    checked(pool, 0)
    assert pool.queued == pool.units


@given(
    st.randoms(use_true_random=True), st.sampled_from([((16, 1),), ((1, 1),), ((4, 2), (6, 5)), ((576, 1), (64, 3))])
)
@settings(max_examples=100, deadline=None)
def test_growth_is_the_sum_over_its_requests(source: Random, growing: tuple[tuple[int, int], ...]) -> None:
    growth, memory = Growth(growing), Memory(1, growing)
    inside: list[Run] = []
    for _ in range(80):
        choice = source.random()
        if inside and choice < 0.2:
            growth.leave(inside.pop(source.randrange(len(inside))))
        elif choice < 0.5 or not inside:
            run = Run(Request(0.0, source.randint(1, 5000), 1), 0.0, None)
            growth.join(run, source.randint(1, 2000))
            inside.append(run)
        else:
            growth.clock += source.randint(1, growth.ends[0] - growth.clock)
            if growth.clock == growth.ends[0]:
                ended = growth.ended()
                assert ended == [run for run in inside if run.finish_at == growth.clock]
                inside = [run for run in inside if run not in ended]
        if source.random() < 0.2:
            growth.rest()
        tokens = [run.own + growth.clock for run in inside]
        ahead = source.choice([0, 1, source.randint(0, 2000)])
        assert growth.tokens == sum(tokens)
        assert growth.units(ahead) == sum(memory.grown(each + ahead) for each in tokens)


def test_ids_are_joined_until_they_hold_whole_blocks() -> None:
    request = Request(0.0, 100, 1, tuple(range(7)))
    fine = Hashes(Memory(9, ((16, 1),)), 16)
    assert fine.parts(request) == (tuple(range(6)), None, 0)
    partial = Hashes(Memory(9, ((16, 1),)), 64)
    assert partial.parts(request) == ((0,), ("", 1, 32), 32)
    prefix = Hashes(Memory(9, ((16, 1),)), 50)  # one id for what many prompts begin with, no multiple of a block
    assert prefix.parts(Request(0.0, 90, 1, (0,))) == ((), ("", 0, 48), 48)
    assert prefix.parts(Request(0.0, 40, 1, (0,))) == ((), ("", 0, 32), 32)
    joined = Hashes(Memory(9, ((48, 1), (16, 2))), 32)
    assert (joined.tokens, joined.units) == (96, 2 + 12)
    assert joined.parts(request).keys == (2,)
    assert fine.parts(Request(0.0, 40, 1, (5, 6, 7), "tenant")).keys == (("tenant", 5), ("tenant", 6))
