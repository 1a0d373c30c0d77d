"""What mixes positions in a layer: attention in its kinds, and layers that carry a state instead of a cache.

Each lists its weight tensors and says what a request's cache is made of; how an engine lays that out in blocks is
cache_specs.py's matter.
"""

from dataclasses import dataclass

from planner.tensors import Split, Tensor, linear, norm

PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention: MHA, GQA or MQA (Ainslie et al. 2023, arXiv:2305.13245), full unless windowed or chunked."""

    hidden: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    bias: bool = False
    """On the query, key and value projections."""
    output_bias: bool = False
    norms: tuple[Tensor, ...] = ()
    """Query and key normalisation, and whatever else is beside the four projections (sinks, gates)."""
    window: int | None = None
    """Positions that a query sees, its own included, as the engine counts them; None: all."""
    chunk: int | None = None
    """Chunked-local attention: positions see only their own chunk of this many; None: all."""
    owns_cache: bool = True
    """False where the layer reads another layer's cache."""
    cross: bool = False
    """Keys and values come from an encoder's output, not from the decoder's positions."""
    cross_tokens: int = 0
    """Longest encoder output; 0: as long as the context."""
    index_key_dim: int = 0
    """Width of a further key per token, cached in the model's dtype on every rank for block selection."""
    ignores_kv_dtype: bool = False
    """The engine's model code never passes the KV dtype on: the cache stays in the model's dtype."""
    alibi: bool = False
    """Positions by ALiBi, whose kernels have no fp8 cache."""
    names: tuple[str, str, str, str] = PROJECTIONS
    """The vendor's module paths, for matching the modules that a quantised checkpoint leaves alone."""
    key_bias: bool | None = None
    """Bias of the key projection where it differs from the others (Whisper has none)."""
    query_gate: bool = False
    """The query projection also gives a gate for each number of the output (Qwen3-Next)."""
    projections: bool = True
    """False where `norms` lists all of its weights, projections too (Zamba2)."""
    weights: tuple[Tensor, ...] = ()
    """All weights of the layer, for families that make queries, keys and values in another way."""
    projects_kv: bool = True
    """False where the layer has no key and value projections of its own."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of the projections and what is beside them."""
        if self.weights:
            return self.weights
        if not self.projections:
            return self.norms
        query, key, value, output = self.names
        heads, kv = self.query_heads, self.kv_heads
        key_bias = self.bias if self.key_bias is None else self.key_bias
        projections = (
            (
                *linear(key, kv * self.key_dim, self.hidden, Split.KV_HEADS, bias=key_bias, units=kv),
                *linear(value, kv * self.value_dim, self.hidden, Split.KV_HEADS, bias=self.bias, units=kv),
            )
            if self.projects_kv
            else ()
        )
        query_rows = heads * self.key_dim * (2 if self.query_gate else 1)
        return (
            *linear(query, query_rows, self.hidden, Split.OUTPUT, bias=self.bias, units=heads),
            *projections,
            *linear(output, self.hidden, heads * self.value_dim, Split.INPUT, bias=self.output_bias, units=heads),
            *self.norms,
        )


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of DeepSeek sparse attention: scores earlier tokens by a small key of its own."""

    heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed key/value per token for all heads."""

    hidden: int
    heads: int
    query_rank: int | None
    """Width of the compressed query; None: the query is projected straight."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    sparse: bool = False
    """Attends to the tokens that an indexer picks (DeepSeek-V3.2): its own, or an earlier layer's."""
    indexer: Indexer | None = None
    """This layer's own indexer, which has a cache too."""
    bias: bool = False
    extra: tuple[Tensor, ...] = ()
    """Further weights of a family's own, such as an output gate."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of the down and up projections, their norms and the indexer."""
        heads, width = self.heads, self.nope_dim + self.rope_dim
        return (
            *self._query(heads * width),
            *linear(
                "self_attn.kv_a_proj_with_mqa",
                self.kv_rank + self.rope_dim,
                self.hidden,
                Split.REPLICATED,
                bias=self.bias,
            ),
            *norm("self_attn.kv_a_layernorm", self.kv_rank),
            *linear(
                "self_attn.kv_b_proj",
                heads * (self.nope_dim + self.value_dim),
                self.kv_rank,
                Split.OUTPUT,
                units=heads,
            ),
            *linear("self_attn.o_proj", self.hidden, heads * self.value_dim, Split.INPUT, bias=self.bias, units=heads),
            *self._indexer(),
            *self.extra,
        )

    def _query(self, rows: int) -> tuple[Tensor, ...]:
        if self.query_rank is None:
            return linear("self_attn.q_proj", rows, self.hidden, Split.OUTPUT, units=self.heads)
        return (
            *linear("self_attn.q_a_proj", self.query_rank, self.hidden, Split.REPLICATED, bias=self.bias),
            *norm("self_attn.q_a_layernorm", self.query_rank),
            *linear("self_attn.q_b_proj", rows, self.query_rank, Split.OUTPUT, units=self.heads),
        )

    def _indexer(self) -> tuple[Tensor, ...]:
        if self.indexer is None:
            return ()
        heads, dim = self.indexer.heads, self.indexer.dim
        return (
            *linear("self_attn.indexer.wq_b", heads * dim, self.query_rank or self.hidden, Split.REPLICATED),
            # The engine joins these two into one matrix in the model's dtype, and keeps the norm in float32.
            Tensor("self_attn.indexer.wk", dim, self.hidden),
            Tensor("self_attn.indexer.weights_proj", heads, self.hidden),
            Tensor("self_attn.indexer.k_norm", 2 * dim, dtype="float32"),
        )


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4: a windowed latent cache and, with a ratio, one compressed state per `ratio` tokens beside it."""

    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    """Tokens per compressed state: 0 (none), 4 or 128."""
    index_dim: int
    """Width of the indexer's key; the layers of ratio 4 have one."""
    weights: tuple[Tensor, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights, as the family lists them."""
        return self.weights


@dataclass(frozen=True, slots=True)
class State:
    """A layer with a constant state per request: a convolution's tail and a recurrent matrix.

    Mamba 1 and 2, gated delta nets, Kimi delta attention and short convolutions are all of this form.
    source: vLLM 0.33, model_executor/layers/mamba/mamba_utils.py
    """

    kind: str
    """mamba1, mamba2, gated_delta_net, kimi_delta, short_conv, lightning or rg_lru."""
    conv_taps: int
    """Positions that the convolution keeps (its width less one); 0 without a convolution."""
    conv_width: int
    """Channels of the convolution that TP divides."""
    matrix_rows: int
    """Rows of the recurrent state that TP divides (heads, or channels); 0 without one."""
    matrix_width: int
    """Numbers in each row."""
    weights: tuple[Tensor, ...]
    matrix_dtype: str | None = None
    """Dtype of the recurrent state; None: the model's."""
    grouped_width: int = 0
    """Channels of the convolution per group (Mamba-2's B and C); groups are copied where TP does not divide them."""
    groups: int = 0
    aligned: bool = False
    """Prefix caching aligns its blocks to 64 tokens and needs one more on SM 9.0 and newer."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights, as the family lists them."""
        return self.weights

    def state_bytes(self, tp: int, element_bytes: int, matrix_bytes: int) -> int:
        """Bytes of one request's state in this layer on one rank.

            t * (w / tp + g' * c / tp) * e + r / tp * m * s

        tp: tensor-parallel ranks [1]
        element_bytes: e, bytes of the convolution's numbers [B]
        matrix_bytes: s, bytes of the recurrent state's numbers [B]
        returns: bytes per request [B]
        assumes: t taps, w channels, g' groups of c channels (tp of them where tp does not divide), r rows of m
        source: vLLM 0.33, model_executor/layers/mamba/mamba_utils.py
        """
        groups = self.groups if self.groups % tp == 0 else tp
        channels = (self.conv_width + groups * self.grouped_width) // tp
        return self.conv_taps * channels * element_bytes + self.matrix_rows // tp * self.matrix_width * matrix_bytes


Mixer = Attention | LatentAttention | CompressedAttention | State
