"""How a search names its choices."""

from planner.render.tables import ranks
from planner.search_report import Choice, SpaceFacts


def shape(choice: Choice) -> str:
    """'TP4 x DP2 EP8', or '1 device'."""
    devices = ranks(choice.tp, choice.pp, choice.dp)
    return f"{devices} EP{choice.ep}" if choice.ep > 1 else devices


def named(space: SpaceFacts, choice: Choice) -> str:
    """The choice, with what of it the space varies."""
    limits = (
        ("batched", choice.max_num_batched_tokens, space.max_num_batched_tokens),
        ("seqs", choice.max_num_seqs, space.max_num_seqs),
    )
    parts = [choice.accelerator, shape(choice)]
    parts += [choice.engine] if len(space.engines) > 1 else []
    parts += [choice.kv_dtype] if len(space.kv_dtypes) > 1 else []
    parts += [f"{name} {value:,}" for name, value, tried in limits if len(tried) > 1 and value is not None]
    return " ".join(parts)
