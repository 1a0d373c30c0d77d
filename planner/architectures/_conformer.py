"""The Conformer encoder of sound that Gemma 3n and Gemma 4 share: its weights, whole on every rank; it owns no cache.

source: transformers, models/gemma3n/modeling_gemma3n.py and models/gemma4/modeling_gemma4.py
"""

from collections.abc import Iterator

from planner.architectures import _common as common
from planner.blocks import Tower
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

FREQUENCIES = 128
"""Bins of the spectrogram, a quarter of which two convolutions of stride 2 leave."""
KERNEL = 3 * 3


def encoder(
    audio: VendorConfig, name: str, *, default_hidden: int, prefix: str, channels: str, output: tuple[Tensor, ...] = ()
) -> Tower:
    """The tower of an audio config.

    prefix: that of the fields that describe the layers
    channels: the field with the channels of the two convolutions before the layers
    output: what follows the layers
    """
    hidden = audio.integer("hidden_size", default=default_hidden, most=common.MOST_WIDTH)
    count = audio.integer(f"{prefix}num_hidden_layers", default=12, most=common.MOST_LAYERS)
    heads = audio.integer(f"{prefix}num_attention_heads", default=8, most=common.MOST_HEADS)
    taps = audio.integer(f"{prefix}conv_kernel_size", default=5, most=1024)
    widths = audio.integers(channels) or (128, 32)
    audio.refuse_unless(
        len(widths) == 2 and all(0 < width <= common.MOST_HEADS for width in widths),
        channels,
        f"the channels of two convolutions are needed, not {list(widths)}",
    )
    first, second = widths if len(widths) == 2 else (1, 1)
    subsampling = (
        Tensor(f"{name}.subsample_conv_projection.conv_0", first, KERNEL),
        *norm(f"{name}.subsample_conv_projection.norms", first + second),
        Tensor(f"{name}.subsample_conv_projection.conv_1", second, first * KERNEL),
        *linear(
            f"{name}.subsample_conv_projection.input_proj_linear",
            hidden,
            second * (FREQUENCIES // 4),
            Split.REPLICATED,
        ),
    )
    layer = tuple(_layer(f"{name}.layers", hidden, max(1, hidden // heads), taps))
    weights = (*((1, t) for t in subsampling), *((count, t) for t in layer), *((1, t) for t in output))
    return Tower("audio tower", weights)


def _layer(name: str, hidden: int, head_dim: int, taps: int) -> Iterator[Tensor]:
    """Two feed-forwards of half weight around attention and a convolution over time."""
    for half in ("feed_forward1", "feed_forward2"):
        yield from linear(f"{name}.{half}.ffw_layer_1", 4 * hidden, hidden, Split.REPLICATED)
        yield from linear(f"{name}.{half}.ffw_layer_2", hidden, 4 * hidden, Split.REPLICATED)
    for square in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj"):
        yield from linear(f"{name}.self_attn.{square}", hidden, hidden, Split.REPLICATED)
    yield Tensor(f"{name}.self_attn.per_dim_scale", head_dim)
    yield from linear(f"{name}.lconv1d.linear_start", 2 * hidden, hidden, Split.REPLICATED)
    yield from linear(f"{name}.lconv1d.linear_end", hidden, hidden, Split.REPLICATED)
    yield Tensor(f"{name}.lconv1d.depthwise_conv1d", hidden, taps)
    yield from norm(f"{name}.norms", 9 * hidden)
