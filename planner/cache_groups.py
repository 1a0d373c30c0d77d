"""Specs -> groups of layers whose blocks are taken together (vLLM 0.33, v1/core/kv_cache_planning.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.kv_cache import CacheSpec, Kind
from planner.units import ceil_div

GROWING = (Kind.FULL, Kind.MLA)
"""Kinds whose blocks grow with the context without bound."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose blocks are taken together, on one rank."""

    spec: CacheSpec
    """Of one of its layers; all take the same blocks."""
    layers: int
    page_bytes: int
    """One block, all layers of the group."""

    @property
    def growing(self) -> bool:
        """Its blocks grow with the context without bound."""
        return self.spec.kind in GROWING or self.spec.unbounded


def group_layers(counts: Mapping[CacheSpec, int]) -> tuple[Group, ...]:
    """The groups of one rank's layers.

    counts: each different spec and how many layers have it, in the order of their first layers
    """
    if any(spec.packed for spec in counts):
        return _packed_groups(counts)
    if _one_type(counts):
        page = sum(count * spec.page_bytes for spec, count in counts.items())
        return (Group(max(counts, key=lambda spec: spec.page_bytes), sum(counts.values()), page),)
    unified = _unify_pages(counts)
    size = _group_size(tuple(unified.values()))
    return tuple(
        Group(spec, layers, layers * spec.page_bytes)
        for spec, count in unified.items()
        for layers in _spread(count, ceil_div(count, size))
    )


def _one_type(counts: Mapping[CacheSpec, int]) -> bool:
    """True where the specs differ in page size at most; full and latent caches are one type."""
    types = {("full" if s.kind in GROWING else s.kind, s.span_tokens, s.block_tokens, s.state_blocks) for s in counts}
    return len(types) == 1 and (len(counts) == 1 or next(iter(counts)).kind is not Kind.STATE)


def _unify_pages(counts: Mapping[CacheSpec, int]) -> dict[CacheSpec, int]:
    """Pages of one size: a smaller page's block grows where its page divides the largest, else it is padded."""
    largest = max(spec.page_bytes for spec in counts)
    unified: dict[CacheSpec, int] = {}
    for spec, count in counts.items():
        factor = largest // spec.page_bytes if largest % spec.page_bytes == 0 else 1
        wider = replace(spec, page_bytes=largest, block_tokens=spec.block_tokens * factor)
        unified[wider] = unified.get(wider, 0) + count
    return unified


def _group_size(counts: tuple[int, ...]) -> int:
    """Layers per group: the smallest bucket's, or the largest's where they differ by less than half."""
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def _spread(count: int, parts: int) -> list[int]:
    """`count` layers over `parts` groups as evenly as whole numbers allow, larger ones first."""
    return [count // parts + (1 if i < count % parts else 0) for i in range(parts)]


def _packed_groups(counts: Mapping[CacheSpec, int]) -> tuple[Group, ...]:
    """DeepSeek-V4's packing: buckets by kind, block and window, the balanced ones split into groups of one size."""
    buckets: dict[tuple[Kind, int, int], list[CacheSpec]] = {}
    for spec in counts:
        buckets.setdefault((spec.kind, spec.block_tokens, spec.span_tokens), []).append(spec)
    balanced = {key: counts[specs[0]] for key, specs in buckets.items() if len({counts[s] for s in specs}) == 1}
    several = [n for key, n in balanced.items() if len(buckets[key]) > 1]
    size = _packed_size(tuple(balanced.values()), max(several, default=1))
    groups: list[Group] = []
    for key, specs in buckets.items():
        parts = ceil_div(balanced[key], size) if key in balanced else 1
        groups.extend(_parts(specs, counts, parts))
    return tuple(groups)


def _parts(specs: list[CacheSpec], counts: Mapping[CacheSpec, int], parts: int) -> list[Group]:
    """A bucket whole, or a balanced one in several groups of all its specs."""
    if parts == 1:
        page = sum(counts[spec] * spec.page_bytes for spec in specs)
        return [Group(specs[0], sum(counts[spec] for spec in specs), page)]
    page = sum(spec.page_bytes for spec in specs)
    return [Group(specs[0], share * len(specs), share * page) for share in _spread(counts[specs[0]], parts)]


def _packed_size(layers: tuple[int, ...], least: int) -> int:
    """Layers per group that leave the fewest empty places over all balanced buckets; the larger on ties."""
    candidates = range(least, max(layers, default=least) + 1)
    return min(candidates, key=lambda size: (sum(-n % size for n in layers), -size))
