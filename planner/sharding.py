"""What one rank stores: tensor, pipeline, expert and data parallelism as vLLM lays them out."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.blocks import Layer, Stack, runs
from planner.quantisation import SMALLEST_BLOCK, Quantisation
from planner.tensors import EXPERT_SPLITS, Split, Tensor
from planner.units import DTYPE_BYTES, ceil_div, round_up

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

    def tensors(self, stack: Stack) -> Iterator[tuple[int, Tensor]]:
        """(how many times, tensor) for every weight of the stage."""
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
        for count, layer in runs(self.layers):
            for tensor in layer.tensors():
                yield count, tensor


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
        result.append(Stage(index, layers, index == 0, index == pp - 1))
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
    for _, tensor in stack.tensors():
        reason = _indivisible(tensor, ranks) or _cut_blocks(tensor, ranks, quantisation)
        if reason and reason not in found:
            found.append(reason)
    return found


def _indivisible(tensor: Tensor, ranks: Ranks) -> str | None:
    tp = ranks.tp
    if tensor.split is Split.KV_HEADS and tensor.units % tp and tp % tensor.units:
        return f"tp {tp} and the model's {tensor.units} key/value heads: one must divide the other"
    if tensor.split is Split.VOCAB and vocab_rows(tensor) % tp:
        return f"tp {tp} does not divide the vocabulary of {tensor.rows} (padded to {vocab_rows(tensor)})"
    if tensor.split in EXPERT_SPLITS and ranks.ep == 1:
        width = tensor.rows if tensor.split is Split.EXPERT_OUTPUT else tensor.cols
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
    if not quantisation or not quantisation.has_blocks or ranks.tp == 1:
        return None
    if not tensor.quantisable or quantisation.leaves_alone(tensor.name) or tensor.split is Split.REPLICATED:
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
    if tensor.split is Split.OUTPUT:
        return rows // tp, cols, copies
    if tensor.split is Split.INPUT:
        return rows, cols // tp, copies
    if tensor.split is Split.KV_HEADS:
        return rows // tensor.units * max(1, tensor.units // tp), cols, copies
    if tensor.split is Split.VOCAB:
        return vocab_rows(tensor) // tp, cols, copies
    if tensor.split in EXPERT_SPLITS:
        if ranks.ep > 1:
            return rows, cols, ceil_div(copies, ranks.ep)
        if tensor.split is Split.EXPERT_OUTPUT:
            return rows // ranks.expert_ranks, cols, copies
        return rows, cols // ranks.expert_ranks, copies
    return rows, cols, copies


def tensor_bytes(tensor: Tensor, ranks: Ranks, dtype: str, quantisation: Quantisation | None) -> int:
    """Bytes of one tensor on one rank, stored as the checkpoint and the engine store it [B]."""
    rows, cols, copies = rank_shape(tensor, ranks)
    if quantisation and tensor.quantisable and not quantisation.leaves_alone(tensor.name):
        if tensor.split in EXPERT_SPLITS:
            cut_cols = tensor.split is Split.EXPERT_INPUT
            quantisation = quantisation.of_expert_slice(rows, cols, cut_cols=cut_cols)
        return copies * quantisation.weight_bytes(rows, cols)
    return rows * cols * copies * DTYPE_BYTES[tensor.dtype or dtype]


def weight_bytes(stack: Stack, stage: Stage, ranks: Ranks, dtype: str, quantisation: Quantisation | None) -> int:
    """Bytes of weights on one rank of a pipeline stage [B].

    dtype: the dtype the model is served in
    source: vLLM 0.33, sum of the parameters of tensor-parallel rank 0
    """
    scales = quantisation.cache_scales * len(stage.layers) * DTYPE_BYTES[dtype] if quantisation else 0
    return scales + sum(
        count * tensor_bytes(tensor, ranks, dtype, quantisation) for count, tensor in stage.tensors(stack)
    )
