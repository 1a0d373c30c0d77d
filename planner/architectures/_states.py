"""State layers that families share: the weights of each kind, and what it keeps of a request.

source: vLLM 0.33, model_executor/layers/mamba/mamba_utils.py (state shapes); each builder names its weights' file
"""

from planner.architectures import _common as common
from planner.mixers import State
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

STATE_DTYPES = ("auto", "float32", "bfloat16", "float16")


def state_dtype(config: VendorConfig, field: str, default: str | None = None) -> str | None:
    """The dtype of recurrent states that a config names; None: the model's."""
    named = config.text(field, default=default or "auto", accepted=STATE_DTYPES)
    return None if named == "auto" else named


def state_taps(config: VendorConfig, *names: str, default: int | None = None) -> int:
    """Width of a state layer's convolution."""
    return config.integer(*names, default=default, most=1024)


def mamba1(
    hidden: int, inner: int, size: int, taps: int, rank: int, *, conv_bias: bool, bias: bool, norms: bool, name: str
) -> State:
    """A selective state space (Gu and Dao 2023, arXiv:2312.00752): a state of `size` for each of `inner` channels.

    norms: of the time step and of what writes and reads the state (Jamba)
    source: vLLM 0.33, model_executor/layers/mamba/mamba_mixer.py, which quantises none of these weights
    """
    weights = (
        *_conv(f"{name}.conv1d", inner, taps, bias=conv_bias),
        *_vector_and_matrix(f"{name}.in_proj", 2 * inner, hidden, Split.OUTPUT, bias=bias),
        *_vector_and_matrix(f"{name}.x_proj", rank + 2 * size, inner, Split.INPUT, bias=False),
        *_vector_and_matrix(f"{name}.dt_proj", inner, rank, Split.OUTPUT, bias=True),
        Tensor(f"{name}.A_log", inner, size, Split.OUTPUT, dtype="float32"),
        Tensor(f"{name}.D", inner, split=Split.OUTPUT),
        *_vector_and_matrix(f"{name}.out_proj", hidden, inner, Split.INPUT, bias=bias),
        *(norm(f"{name}.layernorms", rank + 2 * size) if norms else ()),
    )
    return State("mamba1", taps - 1, inner, inner, size, weights)


def mamba2(
    hidden: int,
    heads: int,
    head_dim: int,
    groups: int,
    size: int,
    taps: int,
    *,
    conv_bias: bool,
    bias: bool,
    name: str,
    gated_norm: bool = True,
    dtype: str | None = None,
) -> State:
    """Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a head_dim x size state per head, written and read by groups.

    dtype: of the recurrent state; None: the model's
    source: vLLM 0.33, model_executor/layers/mamba/mamba_mixer2.py
    """
    inner, shared = heads * head_dim, groups * size
    # The engine's input projection: gate, values, what writes and reads the state (one each per group), time step.
    inputs = (
        *linear(f"{name}.in_proj", inner, hidden, Split.OUTPUT, bias=bias) * 2,
        *linear(f"{name}.in_proj", shared, hidden, Split.GROUPS, bias=bias, units=groups) * 2,
        *linear(f"{name}.in_proj", heads, hidden, Split.OUTPUT, bias=bias),
    )
    weights = (
        *inputs,
        *_conv(f"{name}.conv1d", inner, taps, bias=conv_bias),
        *_conv(f"{name}.conv1d", 2 * shared, taps, bias=conv_bias, split=Split.GROUPS, units=groups),
        Tensor(f"{name}.A_log", heads, split=Split.OUTPUT, dtype="float32"),
        Tensor(f"{name}.D", heads, split=Split.OUTPUT),
        Tensor(f"{name}.dt_bias", heads, split=Split.OUTPUT),
        *((Tensor(f"{name}.norm", inner, split=Split.OUTPUT),) if gated_norm else ()),
        *linear(f"{name}.out_proj", hidden, inner, Split.INPUT, bias=bias),
    )
    return State("mamba2", taps - 1, inner, heads, head_dim * size, weights, dtype, 2 * size, groups)


def gated_delta_net(
    hidden: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    taps: int,
    *,
    joined: bool,
    dtype: str | None = None,
) -> State:
    """Gated delta net (Yang et al. 2024, arXiv:2412.06464): a key_dim x value_dim state per value head.

    joined: queries, keys, values and gates are one matrix in the checkpoint, and so are the two scalars per head
    dtype: of the recurrent state; None: the model's
    source: vLLM 0.33, model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py
    """
    name, keys, values = "linear_attn", key_heads * key_dim, value_heads * value_dim
    if joined:
        inputs = (
            *linear(f"{name}.in_proj_qkvz", 2 * (keys + values), hidden, Split.OUTPUT, units=key_heads),
            *linear(f"{name}.in_proj_ba", 2 * value_heads, hidden, Split.OUTPUT, units=value_heads),
        )
    else:
        inputs = (
            *linear(f"{name}.in_proj_qkv", keys, hidden, Split.OUTPUT, units=key_heads) * 2,
            *linear(f"{name}.in_proj_qkv", values, hidden, Split.OUTPUT, units=value_heads),
            *linear(f"{name}.in_proj_z", values, hidden, Split.OUTPUT, units=value_heads),
            *linear(f"{name}.in_proj_b", value_heads, hidden, Split.OUTPUT),
            *linear(f"{name}.in_proj_a", value_heads, hidden, Split.OUTPUT),
        )
    weights = (
        *inputs,
        *_conv(f"{name}.conv1d", 2 * keys + values, taps, bias=False),
        Tensor(f"{name}.dt_bias", value_heads, split=Split.OUTPUT),
        Tensor(f"{name}.A_log", value_heads, split=Split.OUTPUT, dtype="float32"),
        *norm(f"{name}.norm", value_dim),
        *linear(f"{name}.out_proj", hidden, values, Split.INPUT, units=value_heads),
    )
    kind, width = "gated_delta_net", 2 * keys + values
    return State(kind, taps - 1, width, value_heads, value_dim * key_dim, weights, dtype, aligned=True)


def kimi_delta(hidden: int, heads: int, head_dim: int, taps: int, *, full_rank_gate: bool) -> State:
    """Kimi delta attention (Kimi Linear, arXiv:2510.26692): a square state per head, kept in float32.

    full_rank_gate: the output gate is one projection (Kimi-K3), not two through head_dim channels
    source: vLLM 0.33, model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py and models/kimi_k3/nvidia/kda.py,
        which keep the convolution in float32
    """
    name, inner = "self_attn", heads * head_dim
    joined = 4 * inner + heads if full_rank_gate else 0
    gate = (
        linear(f"{name}.g_proj", inner, hidden, Split.OUTPUT, units=heads)
        if full_rank_gate
        else (
            *linear(f"{name}.g_a_proj", head_dim, hidden, Split.REPLICATED),
            *linear(f"{name}.g_b_proj", inner, head_dim, Split.OUTPUT, units=heads),
        )
    )
    weights = (
        *(linear(f"{name}.{part}_proj", inner, hidden, Split.OUTPUT, units=heads)[0] for part in "qkv"),
        *gate,
        Tensor(f"{name}.f_a_proj", head_dim, hidden, quantisable=True, joined_rows=joined),
        *linear(f"{name}.f_b_proj", inner, head_dim, Split.OUTPUT, units=heads),
        *linear(f"{name}.b_proj", heads, hidden, Split.OUTPUT),
        Tensor(f"{name}.dt_bias", inner, split=Split.OUTPUT, dtype="float32"),
        Tensor(f"{name}.conv1d", 3 * inner, taps, Split.OUTPUT, dtype="float32"),
        Tensor(f"{name}.A_log", heads, split=Split.OUTPUT, dtype="float32"),
        *norm(f"{name}.o_norm", head_dim),
        *linear(f"{name}.o_proj", hidden, inner, Split.INPUT, units=heads),
    )
    square = head_dim * head_dim
    return State("kimi_delta", taps - 1, 3 * inner, heads, square, weights, "float32", aligned=full_rank_gate)


def short_conv(width: int, taps: int, *, bias: bool) -> State:
    """A gated short convolution (LFM2): its last inputs are all that it keeps.

    source: vLLM 0.33, model_executor/layers/mamba/short_conv.py
    """
    weights = (
        *linear("conv.in_proj", width, width, Split.OUTPUT, bias=bias) * 3,
        *_conv("conv.conv", width, taps, bias=bias),
        *linear("conv.out_proj", width, width, Split.INPUT, bias=bias),
    )
    return State("short_conv", taps - 1, width, 0, 0, weights)


def lightning(hidden: int, heads: int, head_dim: int) -> State:
    """Lightning attention (MiniMax-01, arXiv:2501.08313): a square state per head, without a convolution.

    source: transformers, models/minimax/modeling_minimax.py
    """
    inner, name = heads * head_dim, "self_attn"
    weights = (
        *linear(f"{name}.qkv_proj", 3 * inner, hidden, Split.OUTPUT, units=heads),
        *linear(f"{name}.output_gate", inner, hidden, Split.OUTPUT, units=heads),
        *norm(f"{name}.norm", inner),
        *linear(f"{name}.out_proj", hidden, inner, Split.INPUT, units=heads),
    )
    return State("lightning", 0, 0, heads, head_dim * head_dim, weights)


def gated_linear_recurrence(hidden: int, width: int, taps: int, heads: int) -> State:
    """The RG-LRU of Griffin (De et al. 2024, arXiv:2402.19427): one float32 number per channel.

    source: transformers, models/recurrent_gemma/modeling_recurrent_gemma.py
    """
    name, block = "temporal_block", width // heads
    gates = ("input_gate", "recurrent_gate")
    weights = (
        *linear(f"{name}.linear_y", width, hidden, Split.OUTPUT, bias=True),
        *linear(f"{name}.linear_x", width, hidden, Split.OUTPUT, bias=True),
        *_conv(f"{name}.conv_1d", width, taps, bias=True),
        Tensor(f"{name}.rg_lru.recurrent_param", width, split=Split.OUTPUT),
        *(Tensor(f"{name}.rg_lru.{gate}_weight", width, block, Split.OUTPUT, units=heads) for gate in gates),
        *(Tensor(f"{name}.rg_lru.{gate}_bias", width, split=Split.OUTPUT, units=heads) for gate in gates),
        *linear(f"{name}.linear_out", hidden, width, Split.INPUT, bias=True),
    )
    return State("rg_lru", taps - 1, width, width, 1, weights, "float32")


def checked_mamba2(config: VendorConfig, *, inner: int, gated_norm: bool = True) -> State:
    """Mamba-2 by the mamba_* fields of Bamba, Granite and Falcon-H1, whose heads must make up the inner width."""
    heads = config.integer("mamba_n_heads", default=128, most=common.MOST_HEADS)
    auto = config.fields.get("mamba_d_head", "auto") == "auto"
    head_dim = max(1, inner // heads) if auto else config.integer("mamba_d_head", most=common.MOST_HEADS)
    config.refuse_unless(
        heads * head_dim == inner or bool(config.problems),
        "mamba_n_heads",
        f"{heads} heads of {head_dim} do not make up the {inner} channels of the state layers",
    )
    return mamba2(
        common.hidden_size(config),
        heads,
        head_dim,
        config.integer("mamba_n_groups", default=1, most=common.MOST_HEADS),
        config.integer("mamba_d_state", default=256, most=common.MOST_HEADS),
        state_taps(config, "mamba_d_conv", default=4),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        name="mamba",
        gated_norm=gated_norm,
    )


def expanded(config: VendorConfig, field: str) -> int:
    """Inner width of a state layer: a whole multiple (the field, 2 by default) of the hidden width."""
    return config.integer(field, default=2, most=1024) * common.hidden_size(config)


def _conv(
    name: str, channels: int, taps: int, *, bias: bool, split: Split = Split.OUTPUT, units: int = 0
) -> tuple[Tensor, ...]:
    """A convolution of each channel over `taps` positions, which the engine never quantises."""
    weight = Tensor(name, channels, taps, split, units)
    return (weight, Tensor(f"{name}.bias", channels, split=split, units=units)) if bias else (weight,)


def _vector_and_matrix(name: str, rows: int, cols: int, split: Split, *, bias: bool) -> tuple[Tensor, ...]:
    """A linear layer that the engine never quantises."""
    bias_split = Split.REPLICATED if split is Split.INPUT else split
    return (Tensor(name, rows, cols, split), *((Tensor(f"{name}.bias", rows, split=bias_split),) if bias else ()))
