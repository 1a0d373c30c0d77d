"""DeepSeek-V4: compressed attention, hyper-connections, experts everywhere (vLLM, models/deepseek_v4/attention.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import CompressedAttention
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("deepseek_v4", "deepseek_ref")
"""deepseek_ref: SGLang's checkpoints with the experts in fp8 too (huggingface.co/sgl-project/DeepSeek-V4-Pro-FP8)."""

KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
SINK_HEADS = 64
"""Fewest heads that the attention kernel takes on a rank; the sinks are padded to them."""


def blocks(config: VendorConfig) -> Stack:
    """A windowed cache in every layer, and compressed states by compress_ratios; the first layers route by a table.

    Entries of compress_ratios beyond num_hidden_layers belong to multi-token prediction, which is not loaded.
    """
    config.refuse_unless(not config.fields.get("vision_n_layers"), "vision_n_layers", "vision is not supported here")
    count = config.integer("num_hidden_layers", default=43, most=common.MOST_LAYERS)
    mixers = {ratio: _attention(config, ratio) for ratio in KINDS.values()}
    hashed = _hash_layers(config, count)
    beside = (*common.layer_norms(config), *_connections(config))
    moe = _experts(config)
    table = Tensor("ffn.gate.tid2eid", config.integer("vocab_size", most=common.MOST_WIDTH), moe.top_k, dtype="float32")
    made = {
        (ratio, by_table): Layer(
            mixer, replace(moe, router_bias=False) if by_table else moe, (*beside, table) if by_table else beside
        )
        for ratio, mixer in mixers.items()
        for by_table in (True, False)
    }
    layers = tuple(made[ratio, i < hashed] for i, ratio in enumerate(_ratios(config, count)))
    embedding = common.token_embedding(config)
    head = _head(config)
    return Stack(replace(embedding, final=(*embedding.final, *head)), layers, *common.positions(config))


def _ratios(config: VendorConfig, count: int) -> tuple[int, ...]:
    """Tokens per compressed state in each layer: 0, 4 or 128."""
    if config.has("compress_ratios"):
        field, ratios = "compress_ratios", config.integers("compress_ratios")
    else:
        field = "layer_types"
        ratios = tuple(KINDS.get(kind, -1) for kind in config.texts(field))
    config.refuse_unless(len(ratios) >= count, field, f"lists {len(ratios)} layers, and the model has {count}")
    ratios = (*ratios, *(0,) * count)[:count]
    config.refuse_unless(set(ratios) <= set(KINDS.values()), field, "ratios of 0, 4 and 128 are known")
    return tuple(ratio if ratio in KINDS.values() else 0 for ratio in ratios)


def _hash_layers(config: VendorConfig, count: int) -> int:
    if config.has("mlp_layer_types"):
        return sum(kind == "hash_moe" for kind in config.texts("mlp_layer_types"))
    return min(count, config.integer("num_hash_layers", default=3, least=0, most=common.MOST_LAYERS))


def _attention(config: VendorConfig, ratio: int) -> CompressedAttention:
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = config.integer("head_dim", default=512, most=common.MOST_HEADS)
    rank = config.integer("q_lora_rank", default=1024, most=common.MOST_WIDTH)
    groups = config.integer("o_groups", default=8, most=common.MOST_HEADS)
    out_rank = config.integer("o_lora_rank", default=1024, most=common.MOST_WIDTH)
    index_dim = config.integer("index_head_dim", default=128, most=common.MOST_HEADS)
    weights = (
        Tensor("attn.attn_sink", heads, split=Split.OUTPUT, units=heads, dtype="float32", least_rows=SINK_HEADS),
        *linear("attn.wq_a", rank, hidden, Split.REPLICATED),
        *linear("attn.wkv", width, hidden, Split.REPLICATED),
        *norm("attn.q_norm", rank),
        *norm("attn.kv_norm", width),
        *linear("attn.wq_b", heads * width, rank, Split.OUTPUT, units=heads),
        *linear("attn.wo_a", groups * out_rank, heads * width // groups, Split.OUTPUT, units=groups),
        *linear("attn.wo_b", hidden, groups * out_rank, Split.INPUT, units=groups),
        *(_compressor("attn.compressor", hidden, width, ratio) if ratio else ()),
        *(_indexer(config, hidden, rank, index_dim) if ratio == 4 else ()),
    )
    window = config.integer("sliding_window", default=128)
    rope = config.integer("qk_rope_head_dim", default=64, most=width)
    return CompressedAttention(width, rope, window, ratio, index_dim, weights)


def _compressor(name: str, hidden: int, width: int, ratio: int) -> tuple[Tensor, ...]:
    """What makes one state of `ratio` tokens; those of ratio 4 overlap, and so are twice as wide."""
    wide = width * (2 if ratio == 4 else 1)
    return (
        Tensor(f"{name}.ape", ratio, wide, dtype="float32"),
        Tensor(f"{name}.wkv_gate", 2 * wide, hidden),
        *norm(f"{name}.norm", width),
    )


def _indexer(config: VendorConfig, hidden: int, rank: int, dim: int) -> tuple[Tensor, ...]:
    heads = config.integer("index_n_heads", default=64, most=common.MOST_HEADS)
    return (
        *linear("attn.indexer.wq_b", heads * dim, rank, Split.REPLICATED),
        Tensor("attn.indexer.weights_proj", heads, hidden),
        *_compressor("attn.indexer.compressor", hidden, dim, 4),
    )


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", default=2048, most=common.MOST_WIDTH)
    shared = config.integer("n_shared_experts", default=1, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("n_routed_experts",), default=6),
        shared=Mlp(hidden, shared * width, name="ffn.shared_experts") if shared else None,
        router_bias=config.fields.get("topk_method") == "noaux_tc",
        name="ffn",
    )


def _connections(config: VendorConfig) -> tuple[Tensor, ...]:
    """Hyper-connections around attention and experts, in float32."""
    streams, hidden = _streams(config), common.hidden_size(config)
    mixed = (2 + streams) * streams
    return (
        Tensor("hc_fn", 2 * mixed, streams * hidden, dtype="float32"),
        Tensor("hc_base_and_scale", 2 * (mixed + 3), dtype="float32"),
    )


def _head(config: VendorConfig) -> tuple[Tensor, ...]:
    """What joins the streams before the output head."""
    streams = _streams(config)
    return (
        Tensor("hc_head_fn", streams, streams * common.hidden_size(config), dtype="float32"),
        Tensor("hc_head_base_and_scale", streams + 1, dtype="float32"),
    )


def _streams(config: VendorConfig) -> int:
    return config.integer("hc_mult", default=4, most=64)
