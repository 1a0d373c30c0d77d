"""What models are made of: a closed vocabulary that every model family is written in.

A block lists the weight tensors it owns and, for what mixes positions, what a cached token holds. Everything else
(parameters, bytes under a quantisation, what one rank stores) follows from those lists.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from planner.mixers import Mixer
from planner.tensors import Split, Tensor, linear


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
    latent: int | None = None
    """Width in which the routed experts work, between a projection down and one up; None: the hidden width."""
    latent_weights: tuple[Tensor, ...] = ()
    """Those projections, and the norm between them."""
    least_per_rank: int = 0
    """The engine pads a rank's slice of each expert to this width at least."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of the router, all experts, the shared expert and what leads into a latent width."""
        shared = self.shared.tensors() if self.shared else ()
        return (*self._router(), *self._experts(), *shared, *self.latent_weights)

    def _router(self) -> Iterator[Tensor]:
        yield Tensor(f"{self.name}.gate", self.experts, self.hidden, dtype=self.router_dtype)
        if self.router_bias:
            yield Tensor(f"{self.name}.gate.e_score_correction_bias", self.experts, dtype="float32")
        if self.shared_gate:
            yield Tensor(f"{self.name}.shared_expert_gate", 1, self.hidden)

    def _experts(self) -> Iterator[Tensor]:
        ups, width = ("gate_proj", "up_proj") if self.gated else ("up_proj",), self.latent or self.hidden
        shapes = [(up, self.intermediate, width, Split.EXPERT_OUTPUT) for up in ups]
        shapes.append(("down_proj", width, self.intermediate, Split.EXPERT_INPUT))
        for role, rows, cols, split in shapes:
            yield Tensor(
                f"{self.name}.experts.{role}",
                rows,
                cols,
                split,
                copies=self.experts,
                active_copies=self.top_k,
                quantisable=True,
                least_per_rank=self.least_per_rank,
            )


@dataclass(frozen=True)
class Layer:
    """One decoder layer: what mixes positions, what transforms each, and the norms around them."""

    mixer: Mixer | None
    """None for a layer that only transforms each position."""
    ffn: Mlp | Moe | None
    """None for a layer that only mixes."""
    norms: tuple[Tensor, ...] = ()
    beside: tuple[Mixer, ...] = ()
    """Further mixers of the same layer: a state beside attention, cross-attention after it."""
    dense: Mlp | None = None
    """A dense feed-forward beside the experts, in families that have both."""

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that mix positions here."""
        return (*((self.mixer,) if self.mixer else ()), *self.beside)

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of the layer."""
        return self._tensors

    @cached_property
    def _tensors(self) -> tuple[Tensor, ...]:
        parts = (*self.mixers, *(part for part in (self.ffn, self.dense) if part))
        return (*(tensor for part in parts for tensor in part.tensors()), *self.norms)


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
    split: Split = Split.VOCAB
    """REPLICATED where the engine keeps the whole table, unpadded, on every rank."""

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
        return Tensor(name, self.vocab, self.hidden, self.split, quantisable=name == "lm_head")


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder of images, sound or text beside the decoder: weights on the first pipeline stage, and no cache."""

    name: str
    weights: tuple[tuple[int, Tensor], ...]
    """(how many times, tensor)."""


@dataclass(frozen=True)
class Stack:
    """A whole model: embedding, layers in order (equal layers are the same object), output head."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    max_positions: int
    """Longest context the config allows."""
    max_positions_field: str
    """The config field that says so."""
    notes: tuple[str, ...] = ()
    """What a reader of the report should know about this reading of the config."""
    towers: tuple[Tower, ...] = ()
    """Encoders beside the decoder; they own no cache."""
    least_batched_tokens: int = 0
    """Tokens that one engine step must be able to take (one image of a prefix-LM model)."""

    def tensors(self) -> Iterator[tuple[int, Tensor]]:
        """(how many layers hold it, tensor) for every weight of the model."""
        for tensor in (*self.embedding.input_tensors(), *self.embedding.output_tensors()):
            yield 1, tensor
        for tower in self.towers:
            yield from tower.weights
        for count, layer in distinct(self.layers):
            for tensor in layer.tensors():
                yield count, tensor

    @property
    def is_moe(self) -> bool:
        """Some layer routes tokens to experts."""
        return any(isinstance(layer.ffn, Moe) for _, layer in distinct(self.layers))

    @cached_property
    def parameters(self) -> int:
        """All numbers in the checkpoint, as the vendor publishes them (no padding)."""
        return sum(count * tensor.elements for count, tensor in self.tensors())

    @cached_property
    def active_parameters(self) -> int:
        """Numbers used for one text token: all but the towers and the experts that the router does not pick."""
        towers = sum(count * tensor.active_elements for tower in self.towers for count, tensor in tower.weights)
        return sum(count * tensor.active_elements for count, tensor in self.tensors()) - towers


class _Same:
    """A tuple of layers that equals itself alone: comparing what hundreds of layers hold would take longer."""

    __slots__ = ("layers",)

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers

    def __hash__(self) -> int:
        return id(self.layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.layers is self.layers


def distinct(layers: tuple[Layer, ...]) -> tuple[tuple[int, Layer], ...]:
    """(how often, layer) of each layer object, in the order of their first appearance."""
    return _counted(_Same(layers))


@lru_cache(maxsize=16)
def _counted(same: _Same) -> tuple[tuple[int, Layer], ...]:
    by_id = {id(layer): layer for layer in same.layers}
    return tuple((count, by_id[key]) for key, count in Counter(map(id, same.layers)).items())
