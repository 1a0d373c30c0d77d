"""What one rank stores: tensor, pipeline, expert and data parallelism as vLLM lays them out."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.blocks import Layer, Stack, distinct
from planner.mixers import Attention, LatentAttention
from planner.quantisation import SMALLEST_BLOCK, Quantisation
from planner.tensors import EXPERT_SPLITS, Split, Tensor
from planner.units import DTYPE_BYTES, ceil_div, round_up

JOINED_ROWS = 16
VOCAB_PADDING = 64
"""Rows that the engine pads a vocabulary to (vLLM 0.33, layers/vocab_parallel_embedding.py)."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Degrees of parallelism of one replica."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> int:
        """Ranks that divide the experts: TP x DP, whole experts with EP and slices without."""
        return self.tp * self.dp


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: a slice of the layers, and the tables at the ends."""

    index: int
    layers: tuple[Layer, ...]
    first: bool
    last: bool
    start: int = 0
    """The model's layers before this stage's."""

    def tensors(self, stack: Stack) -> Iterator[tuple[int, Tensor]]:
        """(how many times, tensor) for every weight of the stage."""
        for count, tensor in self._outside(stack):
            yield count, tensor
        for count, layer in distinct(self.layers):
            for tensor in layer.tensors():
                yield count, tensor

    def forms(
        self, stack: Stack, quantisation: Quantisation | None
    ) -> Iterator[tuple[int, Tensor, Quantisation | None]]:
        """(how many times, tensor, its module's form or None for the model's dtype) for every weight of the stage."""
        for count, tensor in self._outside(stack):
            yield count, tensor, _form(tensor, quantisation)
        for count, layer, form in self._by_form(quantisation):
            for tensor in layer.tensors():
                yield count, tensor, _form(tensor, form)

    def _by_form(self, quantisation: Quantisation | None) -> Iterator[tuple[int, Layer, Quantisation | None]]:
        """(how often, layer, form within it) of each layer in each form."""
        if quantisation is None or not quantisation.names_layers:
            for count, layer in distinct(self.layers):
                yield count, layer, quantisation
            return
        kinds: dict[tuple[int, Quantisation], list[Layer]] = {}
        for index, layer in enumerate(self.layers, self.start):
            kinds.setdefault((id(layer), quantisation.in_layer(index)), []).append(layer)
        for (_, form), layers in kinds.items():
            yield len(layers), layers[0], form

    def _outside(self, stack: Stack) -> Iterator[tuple[int, Tensor]]:
        """Weights of the stage outside its layers."""
        ends: list[Tensor] = []
        if self.first:
            ends.extend(stack.embedding.input_tensors())
            for tower in stack.towers:
                yield from tower.weights
        if self.last:
            ends.extend(stack.embedding.output_tensors())
            if not self.first:
                ends.extend(stack.embedding.tied_copy())
        for tensor in ends:
            yield 1, tensor


def _form(tensor: Tensor, quantisation: Quantisation | None) -> Quantisation | None:
    return quantisation.form_of(tensor.name) if quantisation else None


def stages(stack: Stack, pp: int) -> tuple[Stage, ...]:
    """Layers by pipeline stage: even, the remainder one each from the last stage but one backwards.

    source: vLLM 0.33, distributed/utils.py get_pp_indices
    """
    sizes = [len(stack.layers) // pp] * pp
    for i in range(len(stack.layers) % pp):
        sizes[-(i + 2)] += 1
    result, start = [], 0
    for index, size in enumerate(sizes):
        layers = stack.layers[start : start + size]
        result.append(Stage(index, layers, index == 0, index == pp - 1, start))
        start += size
    return tuple(result)


def problems(stack: Stack, ranks: Ranks, quantisation: Quantisation | None = None) -> list[str]:
    """Why these degrees cannot shard this model; empty when they can.

    source: vLLM 0.33, config/model.py verify_with_parallel_config; layers/linear.py (even division);
        layers/quantization/utils/fp8_utils.py validate_fp8_block_shape
    """
    found: list[str] = []
    if ranks.pp > len(stack.layers):
        found.append(f"pp {ranks.pp} is more stages than the model's {len(stack.layers)} layers")
    if ranks.ep not in (1, ranks.expert_ranks):
        found.append(f"ep {ranks.ep} is not accepted: expert parallelism spans tp x dp = {ranks.expert_ranks}, or is 1")
    if ranks.ep > 1 and not any(t.split in EXPERT_SPLITS for _, t in stack.tensors()):
        found.append(f"ep {ranks.ep} needs a model with experts, and this one has none")
    towers = {tensor: tower.name for tower in stack.towers for _, tensor in tower.weights}
    for _, tensor, form in stages(stack, 1)[0].forms(stack, quantisation):
        if _held_whole(tensor, ranks):
            continue
        reason = _indivisible(tensor, ranks) or _cut_blocks(tensor, ranks, form)
        reason = f"{towers[tensor]}: {reason}" if reason and tensor in towers else reason
        if reason and reason not in found:
            found.append(reason)
    return found


def _held_whole(tensor: Tensor, ranks: Ranks) -> bool:
    """True for a tower's tensor that falls back to a copy on every rank, the tower's heads being indivisible."""
    return bool(tensor.split_only_by and tensor.split_only_by % ranks.tp)


def _indivisible(tensor: Tensor, ranks: Ranks) -> str | None:
    tp = ranks.tp
    if tensor.split is Split.KV_HEADS and tensor.units % tp and tp % tensor.units:
        return f"tp {tp} and the model's {tensor.units} key/value heads: one must divide the other"
    if tensor.split is Split.GROUPS and tensor.units > 1 and tensor.units % tp:
        return f"tp {tp} does not divide the state layers' {tensor.units} groups"
    if tensor.split is Split.VOCAB and vocab_rows(tensor) % tp:
        return f"tp {tp} does not divide the vocabulary of {tensor.rows} (padded to {vocab_rows(tensor)})"
    if tensor.split in EXPERT_SPLITS and ranks.ep == 1:
        width = _expert_width(tensor, ranks)
        if width % ranks.expert_ranks:
            return f"tp x dp = {ranks.expert_ranks} does not divide the expert width of {width}"
    if tensor.split in (Split.OUTPUT, Split.INPUT):
        units = tensor.units or (tensor.rows if tensor.split is Split.OUTPUT else tensor.cols)
        if units % tp:
            what = "attention heads" if tensor.units else f"width of {tensor.name}"
            return f"tp {tp} does not divide the model's {units} {what}"
    return None


def _cut_blocks(tensor: Tensor, ranks: Ranks, quantisation: Quantisation | None) -> str | None:
    """Why the blocks of weights that share a scale cannot be divided so: a rank needs whole ones."""
    if not quantisation or not tensor.quantisable or ranks.tp == 1:
        return None
    if quantisation.has_groups and tensor.split is Split.INPUT:
        width, group = tensor.cols // ranks.tp, quantisation.scale_cols or 1
        if width % group and group < tensor.cols:
            return f"{tensor.name}: a rank's slice of {width} does not hold whole groups ({quantisation.name})"
    if not quantisation.has_blocks:
        return None
    # Keys and values are slices of a matrix merged with the queries, where the engine accepts cut blocks.
    if tensor.split in (Split.REPLICATED, Split.KV_HEADS):
        return None
    rows, cols, _ = rank_shape(tensor, ranks)
    cut_cols = tensor.split in (Split.INPUT, Split.EXPERT_INPUT)
    width, block = (cols, quantisation.scale_cols) if cut_cols else (rows, quantisation.scale_rows)
    if not block or width % block == 0:
        return None
    if tensor.split in EXPERT_SPLITS:
        refined = quantisation.of_expert_slice(rows, cols, cut_cols=cut_cols)
        if (refined.scale_rows or 0) >= SMALLEST_BLOCK:
            return None
    return f"{tensor.name}: a rank's slice of {width} does not hold whole blocks ({quantisation.name})"


def vocab_rows(tensor: Tensor) -> int:
    """Rows of a vocabulary table as the engine pads it."""
    return round_up(tensor.rows, VOCAB_PADDING) if tensor.padding else tensor.rows


def rank_shape(tensor: Tensor, ranks: Ranks) -> tuple[int, int, int]:
    """(rows, cols, copies) of a tensor on the first rank, which holds the most."""
    rows, cols, copies, tp = tensor.rows, tensor.cols, tensor.copies, ranks.tp
    if _held_whole(tensor, ranks):
        return rows, cols, copies
    if tensor.split is Split.OUTPUT:
        return max(rows // tp, tensor.least_rows), cols, copies
    if tensor.split is Split.INPUT:
        return rows, cols // tp, copies
    if tensor.split in (Split.KV_HEADS, Split.GROUPS):
        return rows // tensor.units * max(1, tensor.units // tp), cols, copies
    if tensor.split is Split.VOCAB:
        return vocab_rows(tensor) // tp, cols, copies
    if tensor.split is Split.EXPERT_WHOLE:
        return rows, cols, ceil_div(copies, ranks.ep)
    if tensor.split in EXPERT_SPLITS:
        if ranks.ep > 1:
            return rows, cols, ceil_div(copies, ranks.ep)
        width = _expert_width(tensor, ranks) // ranks.expert_ranks
        return (width, cols, copies) if tensor.split is Split.EXPERT_OUTPUT else (rows, width, copies)
    if tensor.joined_rows:
        return rows + -(rows + tensor.joined_rows // tp) % JOINED_ROWS, cols, copies
    return rows, cols, copies


def _expert_width(tensor: Tensor, ranks: Ranks) -> int:
    """Width of an expert as the engine divides it: padded where a rank's slice would be too narrow for it."""
    width = tensor.rows if tensor.split is Split.EXPERT_OUTPUT else tensor.cols
    narrow = ranks.tp > 1 and width // ranks.tp < tensor.least_per_rank
    return tensor.least_per_rank * ranks.tp if narrow else width


def tensor_bytes(tensor: Tensor, ranks: Ranks, dtype: str, form: Quantisation | None) -> int:
    """Bytes of one tensor on one rank, stored as the checkpoint and the engine store it [B].

    form: its module's; None: the model's dtype
    """
    rows, cols, copies = rank_shape(tensor, ranks)
    if form and tensor.split is Split.EXPERT_OUTPUT:
        rows = round_up(rows, form.expert_multiple)
    if form and tensor.split is Split.EXPERT_INPUT:
        cols = round_up(cols, form.expert_multiple)
    if form and tensor.quantisable:
        if tensor.split in EXPERT_SPLITS:
            form = form.of_expert_slice(rows, cols, cut_cols=tensor.split is Split.EXPERT_INPUT)
            biases = rows * DTYPE_BYTES[dtype] if form.expert_biases else 0
            return copies * (form.weight_bytes(rows, cols) + biases)
        return copies * form.weight_bytes(rows, cols)
    return rows * cols * copies * DTYPE_BYTES[tensor.dtype or dtype]


def weight_bytes(stack: Stack, stage: Stage, ranks: Ranks, dtype: str, quantisation: Quantisation | None) -> int:
    """Bytes of weights on one rank of a pipeline stage [B].

    dtype: the dtype the model is served in
    source: vLLM 0.33, sum of the parameters of tensor-parallel rank 0
    """
    scales = _cache_scale_bytes(stage.layers, dtype, quantisation) if quantisation else 0
    return scales + sum(
        count * tensor_bytes(tensor, ranks, dtype, form) for count, tensor, form in stage.forms(stack, quantisation)
    )


def _cache_scale_bytes(layers: tuple[Layer, ...], dtype: str, quantisation: Quantisation) -> int:
    scales = quantisation.cache_scales
    kinds = (Attention, LatentAttention) if scales.latent else (Attention,)
    owners = sum(count * sum(isinstance(m, kinds) for m in layer.mixers) for count, layer in distinct(layers))
    return owners * (scales.served * DTYPE_BYTES[dtype] + scales.floats * DTYPE_BYTES["float32"])
