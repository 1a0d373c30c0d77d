"""Weight tensors: their shapes, how tensor parallelism divides them, and what may be quantised."""

from dataclasses import dataclass
from enum import Enum, auto


class Split(Enum):
    """How tensor parallelism divides a tensor (vLLM 0.33, model_executor/layers/linear.py)."""

    REPLICATED = auto()
    OUTPUT = auto()
    """Column parallel: rows (output features) are divided."""
    INPUT = auto()
    """Row parallel: columns (input features) are divided."""
    KV_HEADS = auto()
    """Rows divided by key/value head; a head is copied when there are more ranks than heads."""
    GROUPS = auto()
    """Rows divided by group of a state layer; a single group is copied to every rank."""
    VOCAB = auto()
    """Rows are vocabulary entries, padded to a multiple of 64 and then divided."""
    EXPERT_OUTPUT = auto()
    """One expert's rows; expert parallelism hands out whole experts instead."""
    EXPERT_INPUT = auto()
    """One expert's columns; expert parallelism hands out whole experts instead."""
    EXPERT_WHOLE = auto()
    """Whole on every rank for each expert that the rank works on; expert parallelism hands out whole experts."""


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
    least_rows: int = 0
    """The engine pads a rank's share of the rows to this many."""
    split_only_by: int = 0
    """Where TP does not divide this number (heads of the tower) every rank holds the tensor whole; 0: always split."""
    published: bool = True
    """False for what the engine makes room for and no checkpoint has."""
    least_per_rank: int = 0
    """For experts that TP divides: the engine pads a rank's slice of each to this width at least."""
    joined_rows: int = 0
    """Rows, divided by TP, of others in one matrix with this tensor, which every rank holds whole: the engine pads a
    rank's matrix to a multiple of 16 rows."""

    @property
    def elements(self) -> int:
        """Numbers in all copies, as the checkpoint publishes them."""
        return self.rows * self.cols * self.copies if self.published else 0

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
