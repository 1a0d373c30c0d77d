"""How long one engine step takes on a rank: every kernel's bytes, FLOPs and messages, priced by a calibration."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.cache_specs import INDEX_SCALE_BYTES, compressed_bytes_per_state, latent_bytes_per_token, token_bytes
from planner.calibrate.forms import (
    ACTIVATION_BYTES,
    Work,
    decode_work,
    gemm_work,
    mla_constants,
    moe_work,
    prefill_work,
)
from planner.calibrate.points import DTYPE_BYTES as KERNEL_BYTES
from planner.kernel_times import KernelTimes, Meter, Parts, Terms
from planner.kv_cache import rank_kv_heads
from planner.mixers import Attention, CompressedAttention, LatentAttention, Mixer, State
from planner.rank_work import Experts, Matrix, RankWork
from planner.units import DTYPE_BYTES

MOST_CHUNKS = 64
"""Chunks of a prompt that are priced one by one; what they take grows almost linearly with what is cached."""
SPARSE_TOKENS = 2048
"""Cached tokens that the indexer of sparse attention picks (DeepSeek-V3.2's index_topk)."""
GATED_MATRICES = 3
"""Projections of an expert in the measured kernels."""
ROUTING = "power_law_1.2"
"""How tokens choose experts: real routing is skewed by about this exponent."""
SAMPLING_KERNELS, SAMPLING_BYTES = 3, 12
"""Softmax, sampling and gathering over float32 logits, which each reads once [B per logit]."""
NORM_BYTES = 8
"""A query's and a key's sum of squares of each token, float32."""
WIDE_INPUTS = ("bfloat16", "int4_wo", "int8_wo")
"""Forms whose matrices take 16-bit inputs; others take them as they store their weights."""
STATE_KERNELS = 2
"""Convolution and recurrence."""
FLOPS_PER_STATE = 6
"""A token decays, updates and reads each number of a recurrent state: three multiply-adds [FLOP]."""
UNPACKED = (8, 12)
"""Compute capabilities where vLLM runs FlashAttention-2, which packs a group's query heads in steps of decodes only."""
TILE_ROWS = 128
"""Rows of its tiles, of which a decode that shares its step with prompts uses one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompts, or chunks of them, of one length in a step."""

    tokens: int
    """New tokens of each."""
    prior: int = 0
    """Tokens of each that already have a cache."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank's scheduler runs in one engine step."""

    decodes: int = 0
    """Requests that get one more token."""
    kv_tokens: float = 0.0
    """Mean cached tokens of each."""
    prompts: tuple[Prompt, ...] = ()
    prompt_ranks: float | None = None
    """Data-parallel ranks that run such prompts at once, the others decodes only; None: all."""

    beside_prompts: bool = False
    """Its prompts are priced apart."""

    @property
    def mixed(self) -> bool:
        """Decodes share the step with prompts."""
        return self.decodes > 0 and (self.beside_prompts or bool(self.prompts))

    def everywhere(self, dp: int) -> int:
        """Tokens of all data-parallel ranks, which the experts see together."""
        ranks = dp if self.prompt_ranks is None else min(float(dp), self.prompt_ranks)
        return self.decodes * dp + round((self.tokens - self.decodes) * ranks)

    @property
    def tokens(self) -> int:
        """Tokens through the matrices."""
        return self.decodes + (sum(p.tokens * p.count for p in self.prompts) if self.prompts else 0)

    @property
    def outputs(self) -> int:
        """Tokens that come out: one of each request."""
        return self.decodes + (sum(p.count for p in self.prompts) if self.prompts else 0)


@dataclass(frozen=True, slots=True)
class MatrixPrice:
    """A weight matrix at any number of tokens: its parts grow linearly with them."""

    fixed: Parts
    per_token: Parts
    norm: float
    count: int
    """Layers that have it."""

    def at(self, tokens: int) -> Parts:
        """Parts of one call [s]."""
        (a, b, c, d, e), (u, v, w, x, y) = self.fixed, self.per_token
        return a + u * tokens, b + v * tokens, c + w * tokens, d + x * tokens, e + y * tokens


class StepPrices:
    """What one rank's steps cost: what no step changes is priced once."""

    def __init__(self, work: RankWork, times: KernelTimes) -> None:
        self.work, self.times = work, times
        self.matrices = tuple(
            matrix_price(matrix, times, layer.count) for layer in work.layers for matrix in layer.matrices
        )
        self.head = matrix_price(work.head, times, 1, ACTIVATION_BYTES)
        self.fixed, self.per_token = _small_terms(work, times)
        self.reduces = sum(layer.count * layer.reduces for layer in work.layers)
        self.norm_reduces = sum(layer.count * layer.norm_reduces for layer in work.layers)

    def terms(self, step: Step) -> Terms:
        """Time of one step through all layers, one rank after the other's messages.

            sum over layers of (matrices + attention + experts + small kernels + messages) + output head

        step: requests and tokens of one data-parallel rank [1]
        returns: terms [s]
        assumes: kernels of a rank do not overlap; pipeline stages follow each other, so the sum is over all of them
        source: roofline per kernel (Williams et al. 2009, doi:10.1145/1498765.1498785)
        """
        meter = Meter()
        self.shared(meter, step.tokens, step.everywhere(self.work.ranks.dp))
        self.mixers(meter, step)
        self.outputs(meter, step.outputs)
        return self.times.launched(meter.terms(), self.work.kernels) if step.prompts else meter.terms()

    def shared(self, meter: Meter, tokens: int, everywhere: int) -> None:
        """What depends on the number of tokens alone: matrices, experts, small kernels and messages.

        everywhere: tokens of all data-parallel ranks
        """
        meter.add(self.fixed)
        meter.add(self.per_token, tokens)
        for price in self.matrices:
            meter.kernel(price.at(tokens), price.norm, price.count)
        for layer in self.work.layers:
            if layer.experts:
                meter.add(experts_terms(layer.experts, self.work, self.times, tokens, everywhere), layer.count)
        self._messages(meter, tokens)

    def mixers(self, meter: Meter, step: Step) -> None:
        """Attention and states of all layers."""
        for layer in self.work.layers:
            for mixer in layer.mixers:
                meter.add(mixer_terms(mixer, self.work, self.times, step), layer.count)

    def _messages(self, meter: Meter, tokens: int) -> None:
        """Between ranks: sums after attention and feed-forward, norms' sums, and hidden states to the next stage."""
        times, ranks, message = self.times, self.work.ranks, ACTIVATION_BYTES * tokens * self.work.hidden
        if ranks.tp > 1:
            meter.add(times.collective("all_reduce", message, ranks.tp), self.reduces)
            if self.norm_reduces:
                meter.add(times.collective("all_reduce", NORM_BYTES * tokens, ranks.tp), self.norm_reduces)
        if ranks.pp > 1:
            meter.add(times.collective("all_gather", message, 2), ranks.pp - 1)

    def outputs(self, meter: Meter, outputs: int) -> None:
        """Output head, the gathering of its logits, and sampling."""
        times, work = self.times, self.work
        meter.kernel(self.head.at(outputs), self.head.norm)
        if work.ranks.tp > 1:
            meter.add(times.collective("all_gather", ACTIVATION_BYTES * outputs * work.vocabulary, work.ranks.tp))
        meter.add(times.small(SAMPLING_KERNELS, SAMPLING_BYTES * outputs * work.vocabulary))


def matrix_price(matrix: Matrix, times: KernelTimes, count: int, input_bytes: float | None = None) -> MatrixPrice:
    """A matrix at any number of tokens.

    count: layers that have it
    input_bytes: of one input number; None: as its form has them
    """
    if input_bytes is None:
        input_bytes = ACTIVATION_BYTES if matrix.form in WIDE_INPUTS else matrix.weight_bytes
    none, one = (gemm_work(matrix.n, matrix.k, m, matrix.weight_bytes, input_bytes) for m in (0, 1))
    (fixed, norm), (first, _) = times.matrix(none, matrix.form), times.matrix(one, matrix.form)
    a, b, c, d, e = (after - before for after, before in zip(first, fixed, strict=True))
    return MatrixPrice(fixed, (a, b, c, d, e), norm, count)


def _small_terms(work: RankWork, times: KernelTimes) -> tuple[Terms, Terms]:
    """(what a step pays, what each token adds) for small kernels: of layers, and embedding and final norm."""
    fixed = times.small(2, 0.0)
    each = times.small(0, ACTIVATION_BYTES * 4 * work.hidden)
    for layer in work.layers:
        fixed += times.small(layer.small_kernels, 0.0).times(layer.count)
        each += times.small(0, ACTIVATION_BYTES * layer.small_width).times(layer.count)
        for matrix in layer.matrices:
            if matrix.quantises:
                quantise = times.quantise(gemm_work(matrix.n, matrix.k, 1, matrix.weight_bytes, 1.0), matrix.form)
                fixed += Terms(launch=quantise.launch).times(layer.count)
                each += Terms(activations=quantise.activations).times(layer.count)
    return fixed, each


def experts_terms(experts: Experts, work: RankWork, times: KernelTimes, tokens: int, every: int) -> Terms:
    """Routed experts of the fullest rank; with data-parallel attention also sending tokens there and back.

    tokens: of the fullest data-parallel rank
    every: of all of them
    """
    form, matrices = experts.form, experts.matrices
    shape = (experts.hidden, experts.intermediate, experts.top_k, experts.experts, experts.tp, experts.ep)
    done = moe_work(*shape, every, KERNEL_BYTES[form], ROUTING)
    if matrices != GATED_MATRICES:
        share = matrices / GATED_MATRICES
        done = replace(done, bytes=done.bytes * share, flops=done.flops * share)
    total = times.experts(done, form)
    if work.ranks.dp > 1:
        copies = min(experts.top_k, experts.ep) if experts.ep > 1 else 1
        message = ACTIVATION_BYTES * tokens * experts.hidden * copies
        operation = "alltoall" if experts.ep > 1 else "all_gather"
        total += times.collective(operation, message, work.ranks.expert_ranks).times(2)
    return total


def mixer_terms(mixer: Mixer, work: RankWork, times: KernelTimes, step: Step) -> Terms:
    """Attention or state of one layer: the decodes' kernel and the prompts'."""
    total = _decode(mixer, work, times, step) if step.decodes else Terms()
    for prompt in step.prompts:
        total += _prefill(mixer, work, times, prompt)
    return total


def visible(mixer: Mixer, tokens: float) -> float:
    """Cached positions that a new token reads in this layer.

        full: L; window: min(L, w); chunk: min(L, c / 2), the mean of a full one; sparse: min(L, 2048)

    mixer: w or c, its span [token]
    tokens: L, cached tokens [token]
    returns: positions [token]
    source: Beltagy et al. 2020, arXiv:2004.05150; DeepSeek-V3.2 (index_topk)
    """
    if isinstance(mixer, Attention):
        if mixer.cross and mixer.cross_tokens:
            return float(mixer.cross_tokens)
        if mixer.window is not None:
            return min(tokens, float(mixer.window))
        if mixer.chunk is not None:
            return min(tokens, mixer.chunk / 2)
    if isinstance(mixer, LatentAttention) and mixer.sparse:
        return min(tokens, float(SPARSE_TOKENS))
    return tokens


def _decode(mixer: Mixer, work: RankWork, times: KernelTimes, step: Step) -> Terms:
    rules, tp, batch, kv_tokens = work.rules, work.ranks.tp, step.decodes, step.kv_tokens
    fp8 = rules.fp8 and not (isinstance(mixer, Attention) and mixer.ignores_kv_dtype)
    keys = ("fp8", "bfloat16") if fp8 else ("bfloat16",)
    seen = visible(mixer, kv_tokens)
    if isinstance(mixer, State):
        return _state(mixer, work, times, batch, batch)
    constants = times.constants("decode_attention", keys)
    if isinstance(mixer, CompressedAttention):
        states = min(kv_tokens, mixer.window) + (kv_tokens / mixer.ratio if mixer.ratio else 0.0)
        size = compressed_bytes_per_state(mixer.head_dim, mixer.rope_dim)
        return times.decode_attention(Work(batch * states * size, 0.0, states, float(batch)), constants)
    if isinstance(mixer, LatentAttention):
        latent = mla_constants(constants, times.constants("prefill_attention", ("bfloat16",)))
        done = latent_work(mixer.heads // tp, mixer.kv_rank, mixer.rope_dim, batch, seen, _latent_bytes(mixer, work))
        indexed = Terms()
        if mixer.indexer:
            read = batch * kv_tokens * (mixer.indexer.dim + INDEX_SCALE_BYTES)
            indexed = times.small(2, read, reads_cache=True)
        return times.decode_attention(done, latent) + indexed
    heads, kv_heads = max(1, mixer.query_heads // tp), rank_kv_heads(mixer.kv_heads, tp)
    width = (mixer.key_dim + mixer.value_dim) / 2
    element = token_bytes(mixer, rules) / (kv_heads * (mixer.key_dim + mixer.value_dim))
    done = decode_work(heads, kv_heads, width, batch, seen, element)
    packed = times.decode_attention(done, constants)
    unpacked = step.mixed and rules.one_pool and rules.sm in UNPACKED and not fp8
    return max(packed, unpacked_decode(done, times), key=lambda terms: terms.seconds) if unpacked else packed


def unpacked_decode(packed: Work, times: KernelTimes) -> Terms:
    """Attention of decodes by a kernel that gives each query head a tile of its own, as large as a prompt's.

        f = m f_1, priced as a prompt's attention; its reads of the cache hide behind it

    packed: f_1, FLOPs of the useful rows [FLOP]
    times: prices of kernels [1]
    returns: terms of one layer [s]
    assumes: m = 128, inferred from steps of two vLLM runs (tests/oracles/traces)
    source: Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp (seqlenq_ngroups_swapped)
    """
    return times.prefill_attention(Work(0.0, TILE_ROWS * packed.flops), ("bfloat16",))


def _latent_bytes(mixer: LatentAttention, work: RankWork) -> float:
    return latent_bytes_per_token(mixer, work.rules) / (mixer.kv_rank + mixer.rope_dim)


def latent_work(heads: int, kv_rank: int, rope_dim: int, batch: int, kv_tokens: float, element_bytes: float) -> Work:
    """Latent attention of one new token per request, its projections absorbed into query and output.

        b = B L (r + d_r) e + 2 B h (2 r + d_r);  f = 2 B L h (2 r + d_r);  n_s = L;  n_i = B

    heads: h, query heads of one GPU [1]
    kv_rank, rope_dim: r and d_r [1]
    batch: B, requests [1]
    kv_tokens: L, cached tokens that each reads [token]
    element_bytes: e, of one cached number [B]
    returns: work of one layer [B, FLOP, 1]
    assumes: all heads share one read of the latent
    source: DeepSeek-V2, arXiv:2405.04434
    """
    width = 2 * kv_rank + rope_dim
    moved = batch * kv_tokens * (kv_rank + rope_dim) * element_bytes + ACTIVATION_BYTES * batch * heads * width
    return Work(moved, 2.0 * batch * kv_tokens * heads * width, steps=float(kv_tokens), items=float(batch))


def _prefill(mixer: Mixer, work: RankWork, times: KernelTimes, prompt: Prompt) -> Terms:
    tp, tokens, prior, count = work.ranks.tp, prompt.tokens, prompt.prior, prompt.count
    if isinstance(mixer, State):
        return _state(mixer, work, times, count, tokens * count)
    keys = _prefill_keys(mixer, work)
    if isinstance(mixer, CompressedAttention):
        seen = min(tokens + prior, mixer.window) + ((tokens + prior) / mixer.ratio if mixer.ratio else 0)
        done = prefill_work(_sized_heads(mixer, tp), 1, mixer.head_dim, count, tokens, 1.0, 0)
        share = min(1.0, 2 * seen / max(1, tokens + 2 * prior))
        return times.prefill_attention(replace(done, flops=done.flops * share), keys)
    if isinstance(mixer, LatentAttention):
        heads = kv_heads = max(1, mixer.heads // tp)
        width, element = (mixer.nope_dim + mixer.rope_dim + mixer.value_dim) / 2, float(ACTIVATION_BYTES)
    else:
        heads, kv_heads = max(1, mixer.query_heads // tp), rank_kv_heads(mixer.kv_heads, tp)
        width = (mixer.key_dim + mixer.value_dim) / 2
        element = token_bytes(mixer, work.rules) / (kv_heads * (mixer.key_dim + mixer.value_dim))
    span = visible(mixer, float(tokens + prior))
    done = prefill_work(heads, kv_heads, width, count, tokens, element, prior)
    if span < tokens + prior:
        done = replace(done, flops=done.flops * banded_share(tokens, prior, span), steps=min(done.steps, 2 * span))
    return times.prefill_attention(done, keys)


def banded_share(tokens: int, prior: int, span: float) -> float:
    """Share of the causal scores that a bounded span leaves.

        sum_i min(P + i, w) / (S P + S (S + 1) / 2), i = 1 .. S

    tokens: S, new tokens [token]
    prior: P, cached ones before them [token]
    span: w, positions that each sees [token]
    returns: share [1]
    source: Beltagy et al. 2020, arXiv:2004.05150
    """
    growing = max(0.0, min(float(tokens), span - prior))
    inside = growing * prior + growing * (growing + 1) / 2
    return (inside + (tokens - growing) * span) / (tokens * prior + tokens * (tokens + 1) / 2)


def _sized_heads(mixer: CompressedAttention, tp: int) -> int:
    rows = next((t.rows for t in mixer.weights if t.name.endswith("wq_b")), mixer.head_dim)
    return max(1, rows // mixer.head_dim // tp)


def _prefill_keys(mixer: Mixer, work: RankWork) -> tuple[str, ...]:
    if not work.rules.fp8 or isinstance(mixer, LatentAttention | CompressedAttention):
        return ("bfloat16",)
    if work.fp8_weights and not work.rules.one_pool:
        return ("fp8", "bfloat16+fp8_kv", "bfloat16")
    return ("bfloat16+fp8_kv", "bfloat16")


def _state(mixer: State, work: RankWork, times: KernelTimes, requests: int, tokens: int) -> Terms:
    """A state layer: each request's state is read and written once, and each token updates it."""
    rules, tp = work.rules, work.ranks.tp
    matrix = DTYPE_BYTES[mixer.matrix_dtype or rules.model_dtype]
    state = mixer.state_bytes(tp, DTYPE_BYTES[rules.model_dtype], matrix)
    moved = times.small(STATE_KERNELS, 2.0 * requests * state, reads_cache=True)
    flops = FLOPS_PER_STATE * tokens * (mixer.matrix_rows // tp) * mixer.matrix_width
    constants = times.constants("prefill_attention", ("bfloat16",))
    speed = constants.compute_efficiency * times.peaks("bfloat16").flops_per_s
    return moved + Terms(compute=flops / speed if tokens > requests else 0.0)


def chunks(tokens: int, most: int | None, prior: int = 0) -> Iterator[tuple[Prompt, int]]:
    """(a chunk of a prompt as the scheduler cuts it, of at most `most` tokens after those before it; how many alike).

    Of more than MOST_CHUNKS full ones, neighbours count as alike: each stands in the middle of its own.
    """
    size = most or tokens
    full = (tokens - 1) // size
    spans = min(full, MOST_CHUNKS)
    for span in range(spans):
        first, after = full * span // spans, full * (span + 1) // spans
        yield Prompt(size, prior + size * (first + after - 1) // 2), after - first
    yield Prompt(tokens - full * size, prior + full * size), 1
