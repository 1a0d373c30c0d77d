"""How layers share a pool: buckets of equal specs, groups of one size, pages unified."""

from collections.abc import Mapping

import pytest

from planner.cache_groups import Group, group_layers
from planner.kv_cache import CacheSpec, Kind
from planner.units import KIB

FULL = CacheSpec(Kind.FULL, 16, 32 * KIB)
WINDOW = CacheSpec(Kind.WINDOW, 16, 32 * KIB, 1024)


def layers_of(groups: tuple[Group, ...], kind: Kind) -> list[int]:
    return [group.layers for group in groups if group.spec.kind is kind]


def test_equal_layers_are_one_group() -> None:
    (group,) = group_layers({FULL: 32})
    assert (group.spec, group.layers, group.page_bytes) == (FULL, 32, 32 * 32 * KIB)


def test_layers_are_spread_evenly_over_groups() -> None:
    """Gemma-3-27B: 52 windowed and 10 full layers; the smallest bucket, 10, sets the size: ceil(52 / 10) = 6 groups."""
    groups = group_layers({WINDOW: 52, FULL: 10})
    assert layers_of(groups, Kind.WINDOW) == [9, 9, 9, 9, 8, 8]
    assert layers_of(groups, Kind.FULL) == [10]
    assert max(group.page_bytes for group in groups) == 10 * 32 * KIB


@pytest.mark.parametrize(
    ("windows", "fulls", "sizes"),
    [
        (14, 10, [14, 10]),  # 14 is less than half more than 10: no bucket is cut, the larger sets the size
        (15, 10, [8, 7, 10]),  # 15 is half more: groups of at most 10
        (10, 14, [10, 14]),
        (23, 23, [23, 23]),
        (3, 1, [1, 1, 1, 1]),
    ],
)
def test_the_smallest_bucket_sets_the_size_unless_all_are_about_as_large(
    windows: int, fulls: int, sizes: list[int]
) -> None:
    assert [group.layers for group in group_layers({WINDOW: windows, FULL: fulls})] == sizes


def test_groups_are_in_the_order_of_their_first_layers() -> None:
    for counts in ({FULL: 2, WINDOW: 2}, {WINDOW: 2, FULL: 2}):
        assert [group.spec for group in group_layers(counts)] == list(counts)


def test_a_smaller_page_takes_more_tokens_where_it_divides() -> None:
    """Gemma-4 at TP 1: the full layers' page is half of the windowed ones', so their blocks hold twice the tokens."""
    narrow = CacheSpec(Kind.FULL, 16, 64 * KIB)
    wide = CacheSpec(Kind.WINDOW, 16, 128 * KIB, 1024)
    window, full = group_layers({wide: 5, narrow: 5})
    assert (window.spec.block_tokens, full.spec.block_tokens) == (16, 32)
    assert window.page_bytes == full.page_bytes == 5 * 128 * KIB


def test_a_page_that_does_not_divide_is_padded() -> None:
    narrow = CacheSpec(Kind.FULL, 16, 48 * KIB)
    wide = CacheSpec(Kind.WINDOW, 16, 128 * KIB, 1024)
    _, full = group_layers({wide: 5, narrow: 5})
    assert (full.spec.block_tokens, full.page_bytes) == (16, 5 * 128 * KIB)


def test_specs_that_unify_to_the_same_are_one_bucket() -> None:
    half, whole = CacheSpec(Kind.FULL, 16, 16 * KIB), CacheSpec(Kind.FULL, 32, 32 * KIB)
    groups = group_layers({half: 3, whole: 2, CacheSpec(Kind.WINDOW, 32, 32 * KIB, 512): 5})
    assert [group.layers for group in groups] == [5, 5]


@pytest.mark.parametrize("kind", [Kind.MLA, Kind.FULL])
def test_one_type_with_several_pages_is_one_group(kind: Kind) -> None:
    """DeepSeek-V3.2: 61 layers of 64 x 1,152 B and as many indexers of 64 x 132 B; MiniMax-M3: full and index keys."""
    main, index = CacheSpec(kind, 64, 64 * 1152), CacheSpec(Kind.MLA, 64, 64 * 132)
    (group,) = group_layers({index: 61, main: 61})
    assert (group.spec, group.layers, group.page_bytes) == (main, 122, 61 * 64 * (1152 + 132))


def test_windows_of_different_spans_are_not_one_type() -> None:
    assert len(group_layers({WINDOW: 4, CacheSpec(Kind.WINDOW, 16, 32 * KIB, 512): 4})) == 2


def packed(kind: Kind, block: int, page: int, span: int = 0) -> CacheSpec:
    return CacheSpec(kind, block, page, span, packed=True)


V4_WINDOW = packed(Kind.WINDOW, 64, 64 * 584 + 64, 128)
V4_INDEX, V4_LATENT_4, V4_LATENT_128 = (packed(Kind.MLA, 256, page) for page in (8640, 37_440, 1728))
V4_INDEX_STATE, V4_STATE_4 = (packed(Kind.WINDOW, 4, page, 8) for page in (8640, 32_832))
V4_STATE_128 = packed(Kind.WINDOW, 8, 32_832, 128)


def counts_of(ratio_4: int, ratio_128: int, plain: int) -> Mapping[CacheSpec, int]:
    return {
        V4_WINDOW: ratio_4 + ratio_128 + plain,
        V4_INDEX: ratio_4,
        V4_INDEX_STATE: ratio_4,
        V4_LATENT_4: ratio_4,
        V4_STATE_4: ratio_4,
        V4_LATENT_128: ratio_128,
        V4_STATE_128: ratio_128,
    }


def test_deepseek_v4_packs_balanced_buckets() -> None:
    """21 layers of ratio 4, 20 of 128, 2 of neither: the latents of block 256 stay whole, being of unequal numbers.

    Balanced: 43 windows, 21 of ratio 4's two states, 20 of ratio 128's state. 43, 21 and 20 leave the fewest places
    empty at 22 layers a group (1 + 1 + 2 = 4; at 21, the least, 20 + 0 + 1; at 43, 0 + 22 + 23).
    """
    groups = group_layers(counts_of(21, 20, 2))
    assert [(group.spec.kind, group.spec.block_tokens, group.layers) for group in groups] == [
        (Kind.WINDOW, 64, 22),
        (Kind.WINDOW, 64, 21),
        (Kind.MLA, 256, 21 + 21 + 20),
        (Kind.WINDOW, 4, 21 + 21),
        (Kind.WINDOW, 8, 20),
    ]
    assert groups[0].page_bytes == 22 * V4_WINDOW.page_bytes
    assert groups[2].page_bytes == 21 * (8640 + 37_440) + 20 * 1728
    assert groups[3].page_bytes == 21 * (8640 + 32_832)


def test_a_bucket_of_several_pages_sets_the_least_size() -> None:
    """7 layers of ratio 4 and 2 of 128: groups of one layer leave no place empty, but the states of ratio 4, of two
    pages, need at least 7; at 7, 5 + 0 + 5 places are empty, at 9, 0 + 2 + 7.
    """
    groups = group_layers(counts_of(7, 2, 0))
    assert [group.layers for group in groups] == [9, 7 + 7 + 2, 7 + 7, 2]
