"""Readings that the families with latent attention share (vLLM, model_executor/models/deepseek_v2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Indexer, LatentAttention
from planner.vendor_config import VendorConfig

MOST_SHARED = 1024


def stack(config: VendorConfig, layers: tuple[Layer, ...]) -> Stack:
    """The layers with the embedding, head and positions of a DeepSeek config."""
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def attention(
    config: VendorConfig, *, sparse: bool = False, indexer: Indexer | None = None, value_dim: int | None = None
) -> LatentAttention:
    """Latent attention by DeepSeek's field names; where q_lora_rank is null the query is projected straight.

    value_dim: the family's own, for configs that omit v_head_dim
    """
    null_query = "q_lora_rank" in config.fields and not config.has("q_lora_rank")
    # vLLM builds no biases, and the published models have none.
    config.refuse_unless(
        not config.flag("attention_bias", default=False), "attention_bias", "biases are not supported here"
    )
    return LatentAttention(
        common.hidden_size(config),
        common.head_count(config),
        None if null_query else config.integer("q_lora_rank", most=common.MOST_WIDTH),
        config.integer("kv_lora_rank", most=common.MOST_WIDTH),
        config.integer("qk_nope_head_dim", most=common.MOST_HEADS),
        config.integer("qk_rope_head_dim", most=common.MOST_HEADS),
        config.integer("v_head_dim", default=value_dim, most=common.MOST_HEADS),
        sparse,
        indexer,
    )


def mixers(config: VendorConfig, count: int) -> tuple[LatentAttention, ...]:
    """Every layer's attention: sparse where the config has an indexer, which some layers may share."""
    if not config.has("index_topk"):
        return (attention(config),) * count
    own = attention(config, sparse=True, indexer=indexer(config))
    shared = attention(config, sparse=True)
    return tuple(own if has_own else shared for has_own in own_indexers(config, count))


def indexer(config: VendorConfig) -> Indexer:
    """The lightning indexer of sparse attention, which reads the compressed query."""
    config.refuse_unless(config.has("q_lora_rank"), "q_lora_rank", "missing, and the indexer reads the query it makes")
    dim = config.integer("index_head_dim", most=common.MOST_HEADS)
    config.refuse_unless(dim == 128, "index_head_dim", f"{dim} has no kernel; only 128 has")
    return Indexer(config.integer("index_n_heads", most=common.MOST_HEADS), dim)


def own_indexers(config: VendorConfig, count: int) -> tuple[bool, ...]:
    """Which layers have an indexer of their own: listed, by a pattern of F and S, or every index_topk_freq-th."""
    scheduled = _scheduled_indexers(config, count)
    if not config.has("indexer_types"):
        return scheduled
    listed = config.texts("indexer_types")
    config.refuse_unless(
        len(listed) == count and set(listed) <= {"full", "shared"},
        "indexer_types",
        f"{count} layers, each full or shared, are needed",
    )
    own = tuple(kind == "full" for kind in listed)
    # The engine builds by the schedule alone, so a list that differs from a given one is a contradiction.
    given = config.has("index_topk_pattern") or config.has("index_topk_freq")
    config.refuse_unless(
        not given or own == scheduled, "indexer_types", "differs from index_topk_pattern or index_topk_freq"
    )
    return own if len(own) == count else scheduled


def _scheduled_indexers(config: VendorConfig, count: int) -> tuple[bool, ...]:
    if config.has("index_topk_pattern"):
        pattern = config.text("index_topk_pattern", default="")
        config.refuse_unless(set(pattern) <= {"F", "S"}, "index_topk_pattern", "letters F and S are needed")
        return tuple(pattern[i : i + 1] != "S" for i in range(count))
    every = config.integer("index_topk_freq", default=1)
    offset = config.integer("index_skip_topk_offset", default=2, least=0)
    return tuple(max(i - offset + 1, 0) % every == 0 for i in range(count))


def experts(config: VendorConfig, *, router_bias: bool, router_dtype: str | None = None, shared: int = 1) -> Moe:
    """Routed experts and, where the config counts any, shared ones.

    shared: the config class's own n_shared_experts
    """
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", most=common.MOST_WIDTH)
    default = 0 if "n_shared_experts" in config.fields else shared
    shared = config.integer("n_shared_experts", default=default, least=0, most=MOST_SHARED)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("n_routed_experts", "num_experts", "num_local_experts")),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=router_bias,
        router_dtype=router_dtype,
    )


def sparse_from(config: VendorConfig, count: int, default: int | None) -> tuple[bool, ...]:
    """Which layers have experts: every moe_layer_freq-th from first_k_dense_replace on."""
    first = config.integer("first_k_dense_replace", default=default, least=0, most=common.MOST_LAYERS)
    step = config.integer("moe_layer_freq", default=1)
    sparse = tuple(i >= first and i % step == 0 for i in range(count))
    listed = tuple(kind == "sparse" for kind in config.texts("mlp_layer_types"))
    # The engine does not read the list.
    config.refuse_unless(listed in ((), sparse), "mlp_layer_types", "differs from first_k_dense_replace")
    return sparse


def decoder(
    config: VendorConfig,
    mixers: tuple[LatentAttention, ...],
    sparse: tuple[bool, ...],
    moe: Moe | None,
    *,
    norms: int = 2,
) -> tuple[Layer, ...]:
    """Layers of the given mixers, each with experts where `sparse` says so; equal ones are one object.

    norms: how many of the hidden size each layer has
    """
    beside = common.layer_norms(config, count=norms)
    dense = common.gated_mlp(config) if moe is None or not all(sparse) else None
    made = {
        key: Layer(key[0], moe if key[1] else dense, beside) for key in dict.fromkeys(zip(mixers, sparse, strict=True))
    }
    return tuple(made[key] for key in zip(mixers, sparse, strict=True))
