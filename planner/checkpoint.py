"""A checkpoint directory: config.json and, from safetensors headers or the index, exact weight bytes.

Only headers are read, never a tensor. The safetensors library is not used here: its reader needs numpy or torch,
and the header is eight bytes of length and that many bytes of JSON
(https://github.com/huggingface/safetensors, format section).
"""

import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents import MAX_BYTES, load_mapping, validate
from planner.errors import InputError
from planner.inputs import Weights
from planner.origin import Origin
from planner.printable import escaped, shown
from planner.units import ceil_div

MAX_HEADER_BYTES = 100 * 10**6
"""The format's own limit."""
MAX_INDEX_BYTES = 64 * 2**20
MAX_POINTER_BYTES = 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
MAX_FILES = 4096
MAX_RANK = 16

DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip


def read_config(directory: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(config.json, hf_quant_config.json or None) of a checkpoint directory."""
    config = directory / "config.json"
    if not os.path.lexists(config):
        raise InputError(f"{directory}: has no config.json; a checkpoint directory holds one")
    quant = directory / "hf_quant_config.json"
    return load_mapping(config, MAX_BYTES), load_mapping(quant) if os.path.lexists(quant) else None


def read_weights(directory: Path, config: Mapping[str, Any]) -> Weights | None:
    """Exact weight bytes of a checkpoint: from headers where the shards are there, else from the index.

    Tensors that the engine does not load are left out: multi-token prediction, buffers that old checkpoints saved, and
    a copy of tied embeddings.
    config: the vendor's config.json
    returns: None where the directory has neither shards nor an index that says the total
    raises: InputError for a header or an index that does not hold together
    """
    shards = [s for s in sorted(directory.glob("*.safetensors")) if not _is_stand_in(s)]
    index = next(iter(sorted(directory.glob("*.safetensors.index.json"))), None)
    named = _shards_of(index) if index else set()
    if shards and (not named or named <= {shard.name for shard in shards}):
        chosen = [s for s in shards if s.name in named] if named else shards
        by_dtype = _bytes_by_dtype(chosen, _Loaded.of(config))
        source = escaped(f"headers of {len(chosen)} safetensors files in {directory}")
        found = {"total_bytes": sum(by_dtype.values()), "bytes_by_dtype": by_dtype, "source": source}
        return validate(Weights, found, Origin(str(directory)))
    total = _index_total(index) if index else None
    if index is None or total is None:
        return None
    source = escaped(f"metadata.total_size of {index}, multi-token prediction layers included where it has them")
    return validate(Weights, {"total_bytes": total, "source": source}, Origin(str(index)))


def _is_stand_in(shard: Path) -> bool:
    """True for what is no shard of the checkpoint: a Git LFS pointer, or Mistral's second copy of all weights."""
    if shard.name.startswith("consolidated"):
        return True
    try:
        return (
            shard.is_file() and shard.stat().st_size < MAX_POINTER_BYTES and shard.read_bytes().startswith(LFS_POINTER)
        )
    except OSError:
        return False


def _shards_of(index: Path) -> set[str]:
    weight_map = load_mapping(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InputError(f"{index}: weight_map: a mapping of tensor names to file names is needed")
    return set(weight_map.values())


def _index_total(index: Path) -> int | None:
    """Bytes of all tensors; None for an index without that optional field."""
    metadata = load_mapping(index, MAX_INDEX_BYTES).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if not isinstance(total, int) or isinstance(total, bool) or total < 1:
        raise InputError(f"{index}: metadata.total_size: the bytes of all tensors are needed, not {shown(total)}")
    return total


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Which tensors the engine loads."""

    layers: int | None
    """Decoder layers; later ones are for multi-token prediction."""
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "_Loaded":
        text = config.get("text_config")
        parts = (config, text) if isinstance(text, Mapping) else (config,)
        layers = next((part["num_hidden_layers"] for part in parts if "num_hidden_layers" in part), None)
        tied = any(part.get("tie_word_embeddings") is True for part in parts)
        return cls(layers if type(layers) is int else None, tied)

    def takes(self, tensor: str) -> bool:
        """True if the engine loads the tensor of this name."""
        if _NEVER_LOADED.search(tensor) or (self.tied and tensor.endswith("lm_head.weight")):
            return False
        layer = _LAYER.match(tensor)
        return layer is None or self.layers is None or int(layer[1]) < self.layers


_LAYER = re.compile(r"(?:(?:model|language_model|transformer|backbone|decoder)\.)*(?:layers|h)\.(\d{1,6})\.")
_NEVER_LOADED = re.compile(r"^(?:model\.)?mtp\.|rotary_emb\.inv_freq$|(?:^|\.)attn\.(?:masked_)?bias$")
"""Multi-token prediction, rotary frequencies, and the causal masks that GPT-2 checkpoints keep."""


def _bytes_by_dtype(shards: list[Path], loaded: _Loaded) -> dict[str, int]:
    if len(shards) > MAX_FILES:
        raise InputError(f"{shards[0].parent}: more than {MAX_FILES} safetensors files")
    totals: Counter[str] = Counter()
    seen: set[str] = set()
    for shard in shards:
        for name, dtype, size in _tensors(shard):
            if name in seen:
                raise InputError(f"{shard}: tensor {shown(name)} is in more than one file")
            seen.add(name)
            if size and loaded.takes(name):
                totals[dtype] += size
    if not totals:
        raise InputError(f"{shards[0].parent}: the safetensors files hold no tensors")
    return dict(sorted(totals.items()))


def _tensors(shard: Path) -> Iterator[tuple[str, str, int]]:
    """(name, dtype, bytes) of each tensor in a safetensors header, with its offsets checked against its shape."""
    for name, entry in _header(shard).items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            known = all(type(n) is int and n >= 0 for n in (*shape, start, stop))
            bits = math.prod(shape) * DTYPE_BITS[dtype] if known and len(shape) <= MAX_RANK else -1
        except (KeyError, TypeError, ValueError):
            bits = -1
        if bits < 0:
            raise InputError(f"{shard}: tensor {shown(name)} has no dtype, shape and offsets that planner knows")
        if stop - start != ceil_div(bits, 8):
            raise InputError(f"{shard}: tensor {shown(name)}: offsets do not match its shape {shown(shape)} of {dtype}")
        yield name, dtype, stop - start


def _header(shard: Path) -> dict[str, Any]:
    try:
        if not shard.is_file():
            raise InputError(f"{shard}: is not a regular file")
        with shard.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise InputError(f"{shard}: is not a safetensors file (header length {length:,})")
            raw = file.read(length)
        header = json.loads(raw) if len(raw) == length else None
    except OSError as error:
        raise InputError(f"{shard}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shard}: the safetensors header is not JSON") from error
    if not isinstance(header, dict):
        raise InputError(f"{shard}: the safetensors header is cut short or is not a mapping")
    return header
