"""Blocks and sharding -> what one rank computes for each layer: matrices as engines merge them, experts, small ops."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from planner.blocks import Layer, Mlp, Moe, Stack
from planner.cache_specs import CacheRules
from planner.calibrate.points import DTYPE_BYTES as KERNEL_BYTES
from planner.mixers import Attention, CompressedAttention, LatentAttention, Mixer, State
from planner.quantisation import Quantisation
from planner.sharding import Ranks, rank_shape, stages
from planner.tensors import EXPERT_SPLITS, Split, Tensor

NARROW = 16
"""Matrices with fewer inputs are convolutions or gates, which the small kernels hold."""
EXPERT_LAUNCHES, FUSED_EXPERT_LAUNCHES = 5, 1
"""Of routed experts: sorting tokens, two grouped products, the activation between them, the sum after; fused: one
operator that starts them all (TensorRT-LLM's fused_moe)."""
QUANTISED = ("fp8", "nvfp4")
"""Forms of which a scale of the whole input is known beforehand, so that whatever writes the input can quantise it."""
SHORT_INPUTS = (Split.INPUT, Split.EXPERT_INPUT)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One GEMM of a rank."""

    n: int
    """Output width."""
    k: int
    """Input width."""
    form: str
    """How its weights are stored, as kernel tables name it."""
    quantises: bool = False
    """A kernel of its own quantises the input, not the one that writes it."""

    @property
    def weight_bytes(self) -> float:
        """Of one stored weight [B]."""
        return KERNEL_BYTES[self.form]


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer."""

    hidden: int
    intermediate: int
    top_k: int
    experts: int
    tp: int
    ep: int
    matrices: int
    """Projections of one expert: 3 with a gate, 2 without."""
    form: str


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One kind of layer on one rank."""

    count: int
    matrices: tuple[Matrix, ...]
    mixers: tuple[Mixer, ...]
    experts: Experts | None
    small_kernels: int
    small_width: int
    """Numbers that they move per token."""
    reduces: int
    """All-reduces of the hidden states."""
    norm_reduces: int = 0
    """All-reduces of a norm's sums, where a norm spans heads that TP divides (MiniMax-M2)."""
    expert_launches: int = EXPERT_LAUNCHES

    def kernels(self, ranks: Ranks) -> int:
        """Kernels that the host launches for one such layer: attention is one."""
        messages = self.reduces + self.norm_reduces if ranks.tp > 1 else 0
        experts = self.expert_launches if self.experts else 0
        matrices = len(self.matrices) + sum(matrix.quantises for matrix in self.matrices)
        return matrices + len(self.mixers) + self.small_kernels + messages + experts


@dataclass(frozen=True, slots=True)
class RankWork:
    """What one rank of a replica computes: all layers, whichever stage holds them, and the output head."""

    layers: tuple[LayerWork, ...]
    head: Matrix
    vocabulary: int
    hidden: int
    ranks: Ranks
    rules: CacheRules
    fp8_weights: bool
    """Linear layers are in fp8 (TensorRT-LLM then runs prompts' attention in fp8 too where the cache is)."""

    @property
    def kernels(self) -> int:
        """Kernels that the host launches for all layers."""
        return sum(layer.count * layer.kernels(self.ranks) for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Narrow numbers that a device multiplies; weights in others are widened to 16 bits first."""

    fp8: bool
    fp4: bool


@dataclass(frozen=True, slots=True)
class ExpertSplit:
    """How ranks divide the experts: slices of each over tp, whole ones over ep."""

    tp: int
    ep: int


def rank_work(
    stack: Stack,
    ranks: Ranks,
    quantisation: Quantisation | None,
    rules: CacheRules,
    *,
    arithmetic: Arithmetic,
    fuses: bool = False,
    quantises: bool = False,
    split: ExpertSplit | None = None,
) -> RankWork:
    """The work of one rank.

    arithmetic: what the device multiplies
    fuses: norms of queries and keys, rotary embedding and the writing of the cache are one kernel, and the routed
        experts one operator (TensorRT-LLM)
    quantises: kernels of their own quantise what norms and activations write (TensorRT-LLM before 1.0)
    split: of the experts; None: as ranks say
    """
    if split is None:
        split = ExpertSplit(1, ranks.expert_ranks) if ranks.ep > 1 else ExpertSplit(ranks.expert_ranks, 1)
    counts: dict[tuple[int, Quantisation | None], int] = {}
    of_id = {id(layer): layer for layer in stack.layers}
    for index, layer in enumerate(stack.layers):
        form = quantisation.in_layer(index) if quantisation and quantisation.names_layers else quantisation
        counts[id(layer), form] = counts.get((id(layer), form), 0) + 1
    kinds: Counter[LayerWork] = Counter()
    for (key, form), count in counts.items():
        work = _layer(of_id[key], ranks, form, split, arithmetic, quantises=quantises)
        kernels, width = _small(of_id[key], ranks, stack.embedding.hidden, fuses=fuses)
        experts = FUSED_EXPERT_LAUNCHES if fuses else EXPERT_LAUNCHES
        kinds[replace(work, small_kernels=kernels, small_width=width, expert_launches=experts)] += count
    layers = tuple(replace(work, count=count) for work, count in kinds.items())
    embedding = stack.embedding
    rows, cols, _ = rank_shape(Tensor("lm_head", embedding.vocab, embedding.hidden, Split.VOCAB), ranks)
    stored = quantisation.form_of("lm_head") if quantisation and not embedding.tied else None
    fp8 = any(matrix.form.startswith("fp8") for work in layers for matrix in work.matrices)
    head = Matrix(rows, cols, kernel_form(stored, arithmetic))
    return RankWork(layers, head, embedding.vocab, embedding.hidden, ranks, rules, fp8)


def kernel_form(form: Quantisation | None, arithmetic: Arithmetic) -> str:
    """How kernel tables name a stored form; 16-bit weights of either kind are one."""
    if form is None:
        return "bfloat16"
    integer = form.name.startswith("int")
    if form.weight_bits == 8:
        if integer or not arithmetic.fp8:
            return "int8_wo"
        return "fp8_block" if form.has_blocks or form.has_groups else "fp8"
    if integer or form.weight_bits != 4:
        return "int4_wo"
    if form.scale_cols == 32:
        return "w4a8_mxfp4_mxfp8" if arithmetic.fp4 else "w4a16_mxfp4"
    return "nvfp4" if arithmetic.fp4 else "w4a16_mxfp4"


def _layer(
    layer: Layer,
    ranks: Ranks,
    form: Quantisation | None,
    split: ExpertSplit,
    arithmetic: Arithmetic,
    *,
    quantises: bool,
) -> LayerWork:
    parts: list[Iterable[Tensor]] = [mixer.tensors() for mixer in layer.mixers]
    experts = None
    for part in (layer.ffn, layer.dense):
        if isinstance(part, Moe):
            experts = _experts(part, split, form, arithmetic)
            parts.append([t for t in part.tensors() if t.split not in EXPERT_SPLITS and t.name == f"{part.name}.gate"])
            parts.append(part.shared.tensors() if part.shared else ())
            parts.append(part.latent_weights)
        elif part is not None:
            parts.append(part.tensors())
    matrices: list[Matrix] = []
    for place, tensors in enumerate(parts):
        of_attention = place < len(layer.mixers) and isinstance(layer.mixers[place], Attention)
        apart = (quantises, quantises and not of_attention)
        matrices += merged(tensors, ranks, form, arithmetic, apart)
    reduces = (1 if layer.mixers else 0) + (1 if layer.ffn or layer.dense else 0)
    attention = [mixer for mixer in layer.mixers if isinstance(mixer, Attention)]
    spanning = sum(any("_norm" in t.name and t.cols == 1 and t.units for t in m.norms) for m in attention)
    return LayerWork(1, tuple(matrices), layer.mixers, experts, 0, 0, reduces, spanning)


def merged(
    tensors: Iterable[Tensor],
    ranks: Ranks,
    form: Quantisation | None,
    arithmetic: Arithmetic,
    apart: tuple[bool, bool] = (False, False),
) -> Iterator[Matrix]:
    """The GEMMs of a part of a layer: matrices with the same input are one, as engines load them.

    Query, key and value; gate and up; the down projections of queries and latents.
    apart: whether kernels of their own quantise inputs that ranks hold whole, and those of which each holds a share
    """
    rows: dict[tuple[int, bool, str], int] = {}
    for tensor in tensors:
        if tensor.cols < NARROW or tensor.rows == 1 or tensor.copies > 1:
            continue
        n, k, _ = rank_shape(tensor, ranks)
        stored = form.form_of(tensor.name) if form and tensor.quantisable else None
        key = k, tensor.split in SHORT_INPUTS, kernel_form(stored, arithmetic)
        rows[key] = rows.get(key, 0) + n
    for (k, short, name), n in rows.items():
        yield Matrix(n, k, name, apart[short] and name in QUANTISED)


def _experts(moe: Moe, split: ExpertSplit, form: Quantisation | None, arithmetic: Arithmetic) -> Experts:
    stored = form.form_of(f"{moe.name}.experts.up_proj") if form else None
    return Experts(
        moe.latent or moe.hidden,
        moe.intermediate,
        moe.top_k,
        moe.experts,
        split.tp,
        split.ep,
        3 if moe.gated else 2,
        kernel_form(stored, arithmetic),
    )


def _small(layer: Layer, ranks: Ranks, hidden: int, *, fuses: bool) -> tuple[int, int]:
    """(small kernels, numbers that they move per token): norms with the residual, rotary embedding, activation.

    A norm reads and writes the hidden states and the residual; rotary embedding reads and writes queries and keys, and
    so do the two norms of queries and keys in families that have them; then the cache is written.
    """
    norms = sum(1 for tensor in layer.norms if tensor.cols == 1 and "norm" in tensor.name)
    kernels, width = norms, norms * 4 * hidden
    for mixer in layer.mixers:
        own_norms = any("norm" in tensor.name for tensor in mixer.tensors() if tensor.cols == 1)
        kernels += 1 if fuses else 2 + 2 * own_norms
        width += (2 + 2 * own_norms) * _mixer_width(mixer) // ranks.tp
    for part in (layer.ffn, layer.dense):
        mlp = part.shared if isinstance(part, Moe) else part
        kernels += isinstance(part, Moe)
        if isinstance(mlp, Mlp):
            kernels += 1
            width += (3 if mlp.gated else 2) * mlp.intermediate // ranks.tp
    return kernels, width


def _mixer_width(mixer: Mixer) -> int:
    """Numbers of a token's queries and keys, or of what a state layer convolves."""
    match mixer:
        case LatentAttention():
            return mixer.heads * (mixer.nope_dim + mixer.rope_dim)
        case State():
            return mixer.conv_width
        case CompressedAttention():
            return mixer.head_dim
        case _:
            return (mixer.query_heads + mixer.kv_heads) * mixer.key_dim


def pipeline_share(stack: Stack, pp: int) -> float:
    """Layers of the fullest pipeline stage over the model's: what one stage takes of a step [1]."""
    return max(len(stage.layers) for stage in stages(stack, pp)) / len(stack.layers)
