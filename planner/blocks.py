"""What models are made of: a closed vocabulary that every model family is written in.

A block lists the weight tensors it owns and, for attention, what a cached token holds. Everything else
(parameters, bytes under a quantisation, what one rank stores) follows from those lists.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby


class Split(Enum):
    """How tensor parallelism divides a tensor (vLLM 0.33, model_executor/layers/linear.py)."""

    REPLICATED = auto()
    OUTPUT = auto()
    """Column parallel: rows (output features) are divided."""
    INPUT = auto()
    """Row parallel: columns (input features) are divided."""
    KV_HEADS = auto()
    """Rows divided by key/value head; a head is copied when there are more ranks than heads."""
    VOCAB = auto()
    """Rows are vocabulary entries, padded to a multiple of 64 and then divided."""
    EXPERT_OUTPUT = auto()
    """One expert's rows; expert parallelism hands out whole experts instead."""
    EXPERT_INPUT = auto()
    """One expert's columns; expert parallelism hands out whole experts instead."""


EXPERT_SPLITS = (Split.EXPERT_OUTPUT, Split.EXPERT_INPUT)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Weights of one role: `copies` matrices of rows x cols, stored as the vendor stores them."""

    name: str
    """The vendor's module path within a layer, such as self_attn.q_proj."""
    rows: int
    """Output features."""
    cols: int = 1
    """Input features; 1 for vectors."""
    split: Split = Split.REPLICATED
    units: int = 0
    """Indivisible units (heads) along the split dimension; 0: any even division."""
    copies: int = 1
    """How many such matrices (experts) the layer holds."""
    active_copies: int | None = None
    """How many of them one token uses; None: all."""
    quantisable: bool = False
    """A linear layer's weight, which weight quantisation may store in fewer bits."""
    dtype: str | None = None
    """Set when the engine keeps it in this dtype whatever the model is served in."""
    padding: bool = True
    """For VOCAB tensors: whether the engine pads the rows."""

    @property
    def elements(self) -> int:
        """Numbers in all copies, as the checkpoint publishes them."""
        return self.rows * self.cols * self.copies

    @property
    def active_elements(self) -> int:
        """Numbers that one token's forward pass uses."""
        copies = self.copies if self.active_copies is None else self.active_copies
        return self.rows * self.cols * copies


def linear(name: str, rows: int, cols: int, split: Split, *, bias: bool = False, units: int = 0) -> tuple[Tensor, ...]:
    """A linear layer: its weight and, with bias, one vector of `rows` (whole when the input is split)."""
    weight = Tensor(name, rows, cols, split, units, quantisable=True)
    if not bias:
        return (weight,)
    bias_split = Split.REPLICATED if split is Split.INPUT else split
    return (weight, Tensor(f"{name}.bias", rows, 1, bias_split, units))


def norm(name: str, width: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    """A normalisation layer: a scale and, with bias, a shift per channel."""
    return (Tensor(name, width * (2 if bias else 1)),)


PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Softmax attention over the whole context: MHA, GQA or MQA (Ainslie et al. 2023, arXiv:2305.13245)."""

    hidden: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    bias: bool = False
    """On the query, key and value projections."""
    output_bias: bool = False
    norms: tuple[Tensor, ...] = ()
    """Query and key normalisation."""
    ignores_kv_dtype: bool = False
    """The engine's model code never passes the KV dtype on: the cache stays in the model's dtype."""
    alibi: bool = False
    """Positions by ALiBi, whose kernels have no fp8 cache."""
    names: tuple[str, str, str, str] = PROJECTIONS
    """The vendor's module paths, for matching the modules that a quantised checkpoint leaves alone."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of the projections and their norms."""
        query, key, value, output = self.names
        heads, kv = self.query_heads, self.kv_heads
        return (
            *linear(query, heads * self.key_dim, self.hidden, Split.OUTPUT, bias=self.bias, units=heads),
            *linear(key, kv * self.key_dim, self.hidden, Split.KV_HEADS, bias=self.bias, units=kv),
            *linear(value, kv * self.value_dim, self.hidden, Split.KV_HEADS, bias=self.bias, units=kv),
            *linear(output, self.hidden, heads * self.value_dim, Split.INPUT, bias=self.output_bias, units=heads),
            *self.norms,
        )


@dataclass(frozen=True, slots=True)
class Mlp:
    """Dense feed-forward: gate, up and down projections, or up and down without a gate."""

    hidden: int
    intermediate: int
    gated: bool = True
    bias: bool = False
    name: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """The vendor's names for the three within `name`; the first is not used without a gate."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of two or three projections."""
        *up_names, down_name = self.names if self.gated else self.names[1:]
        ups = (
            linear(f"{self.name}.{up}", self.intermediate, self.hidden, Split.OUTPUT, bias=self.bias) for up in up_names
        )
        down = linear(f"{self.name}.{down_name}", self.hidden, self.intermediate, Split.INPUT, bias=self.bias)
        return (*(tensor for up in ups for tensor in up), *down)


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: a router picks top_k of `experts`; shared experts see every token."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    gated: bool = True
    shared: Mlp | None = None
    shared_gate: bool = False
    """A learned gate (one row) on the shared expert."""
    router_bias: bool = False
    """A correction bias per expert, kept in float32."""
    router_dtype: str | None = None
    """Set when the engine keeps the router in this dtype."""
    name: str = "mlp"

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of the router, all experts and the shared expert."""
        return (*self._router(), *self._experts(), *(self.shared.tensors() if self.shared else ()))

    def _router(self) -> Iterator[Tensor]:
        yield Tensor(f"{self.name}.gate", self.experts, self.hidden, dtype=self.router_dtype)
        if self.router_bias:
            yield Tensor(f"{self.name}.gate.e_score_correction_bias", self.experts, dtype="float32")
        if self.shared_gate:
            yield Tensor(f"{self.name}.shared_expert_gate", 1, self.hidden)

    def _experts(self) -> Iterator[Tensor]:
        ups = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        shapes = [(up, self.intermediate, self.hidden, Split.EXPERT_OUTPUT) for up in ups]
        shapes.append(("down_proj", self.hidden, self.intermediate, Split.EXPERT_INPUT))
        for role, rows, cols, split in shapes:
            yield Tensor(
                f"{self.name}.experts.{role}",
                rows,
                cols,
                split,
                copies=self.experts,
                active_copies=self.top_k,
                quantisable=True,
            )


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: what mixes positions, what transforms each, and the norms around them."""

    mixer: FullAttention
    ffn: Mlp | Moe
    norms: tuple[Tensor, ...] = ()

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of the layer."""
        return (*self.mixer.tensors(), *self.ffn.tensors(), *self.norms)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token embedding, output head and what else sits outside the layers."""

    vocab: int
    hidden: int
    tied: bool
    """The output head shares the embedding's weights."""
    head_bias: bool = False
    positions: tuple[Tensor, ...] = ()
    """Learned position embeddings, embedding norms and projections: with the first layers."""
    final: tuple[Tensor, ...] = ()
    """The final norm: with the last layers."""
    name: str = "model.embed_tokens"

    def input_tensors(self) -> tuple[Tensor, ...]:
        """What the first pipeline stage holds."""
        return (self._table(self.name), *self.positions)

    def output_tensors(self) -> tuple[Tensor, ...]:
        """What the last pipeline stage holds beside a tied table."""
        head = () if self.tied else (self._table("lm_head"),)
        bias = (Tensor("lm_head.bias", self.vocab, split=Split.VOCAB),) if self.head_bias else ()
        return (*head, *bias, *self.final)

    def tied_copy(self) -> tuple[Tensor, ...]:
        """The table again, for a last pipeline stage that is not also the first."""
        return (self._table(self.name),) if self.tied else ()

    def _table(self, name: str) -> Tensor:
        return Tensor(name, self.vocab, self.hidden, Split.VOCAB)


@dataclass(frozen=True, slots=True)
class Stack:
    """A whole model: embedding, layers in order (equal layers are the same object), output head."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    max_positions: int
    """Longest context the config allows."""
    max_positions_field: str
    """The config field that says so."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of the report should know about this reading of the config."""

    def tensors(self) -> Iterator[tuple[int, Tensor]]:
        """(how many layers hold it, tensor) for every weight of the model."""
        for tensor in (*self.embedding.input_tensors(), *self.embedding.output_tensors()):
            yield 1, tensor
        for count, layer in runs(self.layers):
            for tensor in layer.tensors():
                yield count, tensor

    @property
    def parameters(self) -> int:
        """All numbers in the checkpoint, as the vendor publishes them (no padding)."""
        return sum(count * tensor.elements for count, tensor in self.tensors())

    @property
    def active_parameters(self) -> int:
        """Numbers used for one token: all but the experts that the router does not pick."""
        return sum(count * tensor.active_elements for count, tensor in self.tensors())


def runs(layers: tuple[Layer, ...]) -> Iterator[tuple[int, Layer]]:
    """(length, layer) of each run of the same layer object, in order."""
    for _, group in groupby(layers, key=id):
        run = tuple(group)
        yield len(run), run[0]
