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
from collections.abc import Iterator
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


def read_weights(directory: Path, layers: int | None) -> Weights | None:
    """Exact weight bytes of a checkpoint: from headers where the shards are there, else from the index.

    layers: decoder layers of the config; tensors of later layers (multi-token prediction, which the engine does not
        load without speculative decoding) are left out. None keeps all.
    returns: None where the directory has neither shards nor an index
    raises: InputError for a header or an index that does not hold together
    """
    shards = sorted(directory.glob("*.safetensors"))
    index = next(iter(sorted(directory.glob("*.safetensors.index.json"))), None)
    named = _shards_of(index) if index else set()
    if shards and (not named or named <= {shard.name for shard in shards}):
        chosen = [s for s in shards if s.name in named] if named else shards
        by_dtype = _bytes_by_dtype(chosen, layers)
        source = escaped(f"headers of {len(chosen)} safetensors files in {directory}")
        found = {"total_bytes": sum(by_dtype.values()), "bytes_by_dtype": by_dtype, "source": source}
        return validate(Weights, found, Origin(str(directory)))
    if index:
        total = {"total_bytes": _index_total(index), "source": escaped(f"metadata.total_size of {index}")}
        return validate(Weights, total, Origin(str(index)))
    return None


def _shards_of(index: Path) -> set[str]:
    weight_map = load_mapping(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InputError(f"{index}: weight_map: a mapping of tensor names to file names is needed")
    return set(weight_map.values())


def _index_total(index: Path) -> int:
    metadata = load_mapping(index, MAX_INDEX_BYTES).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if not isinstance(total, int) or isinstance(total, bool) or total < 1:
        raise InputError(f"{index}: metadata.total_size: the bytes of all tensors are needed, not {shown(total)}")
    return total


def _bytes_by_dtype(shards: list[Path], layers: int | None) -> dict[str, int]:
    if len(shards) > MAX_FILES:
        raise InputError(f"{shards[0].parent}: more than {MAX_FILES} safetensors files")
    totals: Counter[str] = Counter()
    seen: set[str] = set()
    for shard in shards:
        for name, dtype, size in _tensors(shard):
            if name in seen:
                raise InputError(f"{shard}: tensor {shown(name)} is in more than one file")
            seen.add(name)
            if size and (layers is None or _layer_index(name) < layers):
                totals[dtype] += size
    if not totals:
        raise InputError(f"{shards[0].parent}: the safetensors files hold no tensors")
    return dict(sorted(totals.items()))


def _layer_index(tensor: str) -> int:
    found = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.", tensor)
    return int(found.group(1)) if found else -1


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
