"""Checkpoint directories: exact weight bytes from safetensors headers or the index, and what is refused."""

import json
import math
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from planner import hub
from planner.architectures import resolve
from planner.catalog import load_model, load_scenario
from planner.checkpoint import read_weights
from planner.cli import app
from planner.errors import InputError
from planner.inputs import Weights
from planner.origin import Origin
from planner.plan import estimate
from planner.report import Report

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
BITS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "F4": 4, "U8": 8, "I64": 64}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def entries(shapes: Shapes) -> dict[str, Any]:
    """A safetensors header: tensors one after another."""
    header, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = math.ceil(math.prod(shape) * BITS[dtype] / 8)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header


def write_raw(path: Path, header: bytes, length: int | None = None, data: int = 0) -> Path:
    """A safetensors file; its data is a hole, so that large ones cost nothing."""
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    os.truncate(path, path.stat().st_size + data)
    return path


def write_shard(path: Path, shapes: Shapes) -> Path:
    header = entries(shapes)
    data = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return write_raw(path, json.dumps({"__metadata__": {"format": "pt"}, **header}).encode(), data=data)


def write_index(directory: Path, weight_map: object, total: object = None) -> Path:
    path = directory / "model.safetensors.index.json"
    fields = {"weight_map": weight_map} | ({} if total is None else {"metadata": {"total_size": total}})
    path.write_text(json.dumps(fields))
    return path


def write_config(directory: Path, **changed: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    return directory


def llama_tensors(dtype: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """The tensors of a llama checkpoint, by the names and shapes that its modelling code gives them."""
    hidden, width, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    shapes |= {"self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (width, hidden), "mlp.up_proj": (width, hidden)}
    shapes |= {"mlp.down_proj": (hidden, width)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", (dtype, shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", (dtype, (hidden,))
    yield "model.embed_tokens.weight", (dtype, (vocab, hidden))
    yield "model.norm.weight", (dtype, (hidden,))
    yield "lm_head.weight", (dtype, (vocab, hidden))


def plan(model: Path, **overrides: Any) -> Report:
    fields = {
        "model": str(model),
        "accelerator": "h100-sxm",
        "workload": {"name": "w", "context_tokens": 512, "concurrency": 1, "source": "test"},
        "price": {"usd_per_hour": 1},
    }
    return estimate(load_scenario(fields, Origin("test"), {k.replace("__", "."): v for k, v in overrides.items()}))


def weights_of(directory: Path, **config: Any) -> Weights:
    found = read_weights(directory, config)
    assert found is not None
    return found


def refusal(directory: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_weights(directory, {})
    (problem,) = caught.value.problems
    return problem


def test_a_directory_without_weights_has_none(tmp_path: Path) -> None:
    assert read_weights(write_config(tmp_path), CONFIG) is None
    assert load_model(str(tmp_path)).weights is None


def test_bytes_by_dtype_over_all_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", {"x": ("BF16", (10, 3)), "y": ("F32", (5,)), "scalar": ("F32", ())})
    write_shard(tmp_path / "b.safetensors", {"z": ("F8_E4M3", (7, 9)), "w": ("F4", (3, 3)), "empty": ("I64", (0, 4))})
    found = weights_of(tmp_path)
    assert found.bytes_by_dtype == {"BF16": 60, "F32": 24, "F4": 5, "F8_E4M3": 63}
    assert found.total_bytes == 152
    assert found.source == f"headers of 2 safetensors files in {tmp_path}"


def test_a_header_is_enough_and_data_is_never_read(tmp_path: Path) -> None:
    write_raw(tmp_path / "a.safetensors", json.dumps(entries({"x": ("BF16", (2**20, 2**20))})).encode())
    assert weights_of(tmp_path).total_bytes == 2**41


def test_the_index_names_the_shards_that_count(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-1.safetensors", {"x": ("BF16", (10,))})
    write_shard(tmp_path / "consolidated.safetensors", {"x": ("BF16", (10,))})
    write_index(tmp_path, {"x": "model-1.safetensors"}, total=999)
    assert weights_of(tmp_path).total_bytes == 20


@pytest.mark.parametrize(
    "weight_map",
    [
        {"x": "model-1.safetensors", "y": "model-2.safetensors"},
        {"x": "model-1.safetensors", "y": "../outside.safetensors"},
        {"x": "/dev/zero"},
    ],
)
def test_a_listed_shard_that_is_not_here_leaves_the_index_to_say(tmp_path: Path, weight_map: dict[str, str]) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    write_shard(directory / "model-1.safetensors", {"x": ("BF16", (10,))})
    write_raw(tmp_path / "outside.safetensors", b"not a header, and never read")
    index = write_index(directory, weight_map, total=40)
    found = weights_of(directory)
    assert (found.total_bytes, found.bytes_by_dtype) == (40, {})
    assert found.source == f"metadata.total_size of {index}, multi-token prediction layers included where it has them"


@pytest.mark.parametrize(("total", "expected"), [(1024, 1024), (1024.0, 1024)])
def test_an_index_alone(tmp_path: Path, total: object, expected: int) -> None:
    write_index(tmp_path, {"x": "model-1.safetensors"}, total)
    assert weights_of(tmp_path).total_bytes == expected


def test_an_index_without_a_total_says_nothing(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "model-1.safetensors"})
    assert read_weights(tmp_path, {}) is None


@pytest.mark.parametrize("total", ["1024", 0, -1, 1.5, True, math.inf, [1]])
def test_an_index_that_does_not_say_the_total(tmp_path: Path, total: object) -> None:
    index = write_index(tmp_path, {"x": "model-1.safetensors"}, total)
    assert refusal(tmp_path).startswith(f"{index}: metadata.total_size: the bytes of all tensors are needed, not")


@pytest.mark.parametrize("weight_map", [None, [], {"x": 1}, "x"])
def test_an_index_without_a_map_of_names(tmp_path: Path, weight_map: object) -> None:
    index = write_index(tmp_path, weight_map, 1024)
    assert refusal(tmp_path) == f"{index}: weight_map: a mapping of tensor names to file names is needed"


def test_a_total_beyond_any_model_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "model-1.safetensors"}, 2**60)
    assert "total_bytes: Input should be less than or equal to" in refusal(tmp_path)


def test_layers_beyond_the_configs_are_left_out(tmp_path: Path) -> None:
    names = (
        "model.embed_tokens",
        "model.layers.0.mlp",
        "model.layers.1.mlp",
        "model.layers.2.mlp",
        "h.2.mlp",
        "model.layers.10.x",
    )
    write_shard(tmp_path / "model.safetensors", dict.fromkeys(names, ("BF16", (10,))))
    assert weights_of(tmp_path).total_bytes == 120
    assert weights_of(tmp_path, num_hidden_layers=2).total_bytes == 60
    assert weights_of(tmp_path, num_hidden_layers=3).total_bytes == 100
    assert weights_of(tmp_path, text_config={"num_hidden_layers": 3}).total_bytes == 100


@pytest.mark.parametrize(
    ("name", "config", "loaded"),
    [
        ("model.layers.0.mlp.weight", {"num_hidden_layers": 1}, True),
        ("model.language_model.layers.1.mlp.weight", {"num_hidden_layers": 1}, False),
        ("model.visual.blocks.31.mlp.weight", {"num_hidden_layers": 1}, True),  # of the tower
        ("vision_tower.encoder.layers.31.mlp.weight", {"num_hidden_layers": 1}, True),
        ("mtp.layers.0.mlp.weight", {}, False),
        ("model.mtp.norm.weight", {}, False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", {}, False),
        ("h.0.attn.bias", {}, False),  # GPT-2's causal mask
        ("h.0.attn.masked_bias", {}, False),
        ("h.0.attn.c_attn.bias", {}, True),
        ("lm_head.weight", {"tie_word_embeddings": True}, False),
        ("lm_head.weight", {"tie_word_embeddings": False}, True),
        ("lm_head.weight", {"text_config": {"tie_word_embeddings": True}}, False),
        ("lm_head.weight", {"num_hidden_layers": "many", "text_config": []}, True),
    ],
)
def test_what_the_engine_does_not_load_is_left_out(
    tmp_path: Path, name: str, config: dict[str, Any], loaded: bool
) -> None:
    write_shard(tmp_path / "model.safetensors", {"model.norm.weight": ("BF16", (1,)), name: ("BF16", (10,))})
    assert weights_of(tmp_path, **config).total_bytes == (22 if loaded else 2)


def test_stand_ins_are_no_shards(tmp_path: Path) -> None:
    """A Git LFS pointer, and Mistral's second copy of all weights."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    write_shard(tmp_path / "consolidated.safetensors", {"x": ("BF16", (10,))})
    assert read_weights(tmp_path, {}) is None
    write_index(tmp_path, {"x": "model.safetensors"}, 1024)
    assert weights_of(tmp_path).total_bytes == 1024


ENTRY = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
UNKNOWN = "tensor 'x' has no dtype, shape and offsets that planner knows"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "is not a safetensors file (header length 0)"),
        (b"not JSON at all", "the safetensors header is not JSON"),
        (b"\xff\xfe\xff", "the safetensors header is not JSON"),
        (b"[" * 100_000, "the safetensors header is not JSON"),
        (b"[]", "the safetensors header is cut short or is not a mapping"),
        (b"{}", "the safetensors files hold no tensors"),
        ({"x": None}, UNKNOWN),
        ({"x": "BF16"}, UNKNOWN),
        ({"x": {**ENTRY, "dtype": "BF17"}}, UNKNOWN),
        ({"x": {**ENTRY, "dtype": ["BF16"]}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": "ab"}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": ["2"]}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": [-1, -2]}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": [True, 2]}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": [2.0]}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": None}}, UNKNOWN),
        ({"x": {**ENTRY, "shape": [2] * 10**5}}, UNKNOWN),
        ({"x": {**ENTRY, "data_offsets": ["0", "4"]}}, UNKNOWN),
        ({"x": {**ENTRY, "data_offsets": [0, 4, 8]}}, UNKNOWN),
        ({"x": {**ENTRY, "data_offsets": [-4, 0]}}, UNKNOWN),
        ({"x": {**ENTRY, "data_offsets": None}}, UNKNOWN),
        ({"x": {**ENTRY, "data_offsets": [0, 5]}}, "tensor 'x': offsets do not match its shape [2] of BF16"),
        ({"x": {**ENTRY, "data_offsets": [4, 0]}}, "tensor 'x': offsets do not match its shape [2] of BF16"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_hold_together_is_refused(
    tmp_path: Path, header: bytes | dict[str, Any], message: str
) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    write_raw(tmp_path / "model.safetensors", raw)
    assert refusal(tmp_path).endswith(f": {message}")


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (2**63, "is not a safetensors file (header length 9,223,372,036,854,775,808)"),
        (100 * 10**6 + 1, "is not a safetensors file (header length 100,000,001)"),
        (10**6, "the safetensors header is cut short or is not a mapping"),
        (1, "is not a safetensors file (header length 1)"),
    ],
)
def test_a_header_length_that_the_file_does_not_have(tmp_path: Path, length: int, message: str) -> None:
    path = write_raw(tmp_path / "model.safetensors", b"{}", length)
    assert refusal(tmp_path) == f"{path}: {message}"


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.safetensors", {"x": ("BF16", (10,))})
    assert refusal(tmp_path) == f"{tmp_path / 'b.safetensors'}: tensor 'x' is in more than one file"


def test_only_regular_shards_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert refusal(tmp_path) == f"{tmp_path / 'model.safetensors'}: is not a regular file"


def test_a_broken_config_link_is_not_taken_for_a_missing_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model(f"{tmp_path}/")
    (tmp_path / "config.json").symlink_to("gone")
    with pytest.raises(InputError, match="cannot be read"):
        load_model(f"{tmp_path}/")


# What the engine loads


@pytest.mark.parametrize(("stored", "declared"), [("BF16", "bfloat16"), ("F32", "float32")])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_checkpoint_takes_what_its_config_says(
    tmp_path: Path, stored: str, declared: str, tp: int, tied: bool
) -> None:
    config = {**CONFIG, "torch_dtype": declared, "tie_word_embeddings": tied}
    tensors = {name: entry for name, entry in llama_tensors(stored, config) if not (tied and name == "lm_head.weight")}
    assert sum(math.prod(shape) for _, shape in tensors.values()) == resolve(config, Origin("x")).parameters
    bare, full = tmp_path / "bare", tmp_path / "full"
    for directory in (bare, full):
        directory.mkdir()
        write_config(directory, **config)
    write_shard(full / "model.safetensors", tensors)
    computed, read = plan(bare, parallelism__tp=tp).memory, plan(full, parallelism__tp=tp).memory
    assert read.weights_bytes == computed.weights_bytes
    assert (computed.lines[0].basis, read.lines[0].basis) == ("computed", "checkpoint")


def test_ranks_conserve_what_is_split(tmp_path: Path) -> None:
    write_shard(write_config(tmp_path) / "model.safetensors", dict(llama_tensors("BF16", CONFIG)))
    norms = 2 * CONFIG["hidden_size"] * (2 * CONFIG["num_hidden_layers"] + 1)
    one, two = (plan(tmp_path, parallelism__tp=tp).memory.weights_bytes for tp in (1, 2))
    assert 2 * two == one + norms


def test_a_float32_checkpoint_known_by_its_index_is_served_in_bf16(tmp_path: Path) -> None:
    parameters = resolve(CONFIG, Origin("x")).parameters
    write_index(write_config(tmp_path, torch_dtype="float32"), {"x": "y"}, 4 * parameters)
    assert plan(tmp_path).memory.weights_bytes == 2 * parameters
    assert plan(tmp_path, engine_options__dtype="float32").memory.weights_bytes == 4 * parameters


def test_extra_layers_do_not_count(tmp_path: Path) -> None:
    write_config(tmp_path)
    computed = plan(tmp_path).memory.weights_bytes
    extra = {name.replace(".0.", ".2."): entry for name, entry in llama_tensors("BF16", CONFIG) if ".0." in name}
    write_shard(tmp_path / "model.safetensors", {**dict(llama_tensors("BF16", CONFIG)), **extra})
    assert plan(tmp_path).memory.weights_bytes == computed


def test_a_quantised_checkpoint_is_loaded_as_it_is(tmp_path: Path) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    write_config(tmp_path, quantization_config=quantised)
    computed = plan(tmp_path).memory.weights_bytes
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in llama_tensors("BF16", CONFIG):
        linear = name.endswith("_proj.weight")
        tensors[name] = ("F8_E4M3" if linear else dtype, shape)
        if linear:
            rows, cols = shape
            tensors[f"{name}_scale_inv"] = ("F32", (math.ceil(rows / 128), math.ceil(cols / 128)))
    write_shard(tmp_path / "model.safetensors", tensors)
    assert plan(tmp_path).memory.weights_bytes == computed


def test_bytes_replace_a_quantisation_that_is_unknown(tmp_path: Path) -> None:
    write_config(tmp_path, quantization_config={"quant_method": "unheard-of"})
    with pytest.raises(InputError, match="is not known"):
        plan(tmp_path)
    write_shard(tmp_path / "model.safetensors", {"x": ("U8", (10**6,))})
    assert plan(tmp_path).memory.lines[0].basis == "checkpoint"


# The hub's cache


def snapshot(cache: Path, revision: str, hidden: int = 256, hub_id: str = "org/name") -> Path:
    directory = cache / f"models--{hub_id.replace('/', '--')}" / "snapshots" / revision
    directory.mkdir(parents=True)
    return write_config(directory, hidden_size=hidden)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_hub_id_is_found_in_the_cache(tmp_path: Path) -> None:
    for revision, hidden in (("aaa", 128), ("bbb", 256), ("ccc", 512)):
        os.utime(snapshot(tmp_path, revision, hidden), (hidden, hidden))
    repository = tmp_path / "models--org--name"
    assert load_model("org/name", hub_cache=tmp_path).config["hidden_size"] == 512
    (repository / "refs").mkdir()
    for named, hidden in (("aaa\n", 128), ("gone", 512), ("", 512), ("../../..", 512)):
        (repository / "refs" / "main").write_text(named)
        assert load_model("org/name", hub_cache=tmp_path).config["hidden_size"] == hidden
    write_shard(repository / "snapshots" / "ccc" / "model.safetensors", {"x": ("BF16", (10,))})
    model = load_model("org/name", hub_cache=tmp_path)
    assert (model.name, model.source, model.weights and model.weights.total_bytes) == (
        "org/name",
        "huggingface.co/org/name",
        20,
    )


def test_a_folder_of_that_name_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot(tmp_path / "cache", "aaa")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    write_config(tmp_path / "org" / "name", hidden_size=1024)
    assert load_model("org/name", hub_cache=tmp_path / "cache").config["hidden_size"] == 1024


def test_an_id_that_is_nowhere_says_which_file_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    result = run("estimate", "--model", "org/name", "--gpu", "h100-sxm", "--workload", "chat")
    assert result.exit_code == 2
    assert result.stderr == (
        "planner: --model: org/name is not in the local Hugging Face cache and huggingface_hub is not installed: save "
        "https://huggingface.co/org/name/resolve/main/config.json and pass its path, or install "
        "'llm-serving-planner[hub]'\n"
    )


class NoEntryError(Exception):
    """Stands for the library's EntryNotFoundError: the repository has no such file."""


class NotCachedError(NoEntryError):
    """Stands for its LocalEntryNotFoundError: the network does not answer."""


@pytest.mark.parametrize(
    ("has", "problem", "message"),
    [
        (("config.json", "model.safetensors.index.json"), NoEntryError(), None),
        (
            ("config.json",),
            NotCachedError("offline\nand more"),
            "--model: org/name could not be fetched (offline): save ",
        ),
        ((), NoEntryError(), "--model: org/name could not be fetched (NoEntryError): save https://huggingface.co/"),
        ((), OSError("offline\nand more"), "--model: org/name could not be fetched (offline): save "),
    ],
)
def test_the_hub_library_fetches_what_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...], problem: Exception, message: str | None
) -> None:
    def fetch(hub_id: str, name: str, *, cache_dir: Path | None) -> str:
        assert (hub_id, cache_dir) == ("org/name", tmp_path)
        if name not in has:
            raise problem
        path = snapshot(tmp_path, "new") if name == "config.json" else tmp_path / "models--org--name/snapshots/new"
        write_index(path, {"x": "y"}, 1000)
        return str(path / name)

    def look(url: str) -> None:
        if url.removeprefix("org/name ") not in has:
            raise problem

    library: Any = ModuleType("huggingface_hub")
    library.hf_hub_download, library.get_hf_file_metadata, library.hf_hub_url = fetch, look, "{} {}".format
    errors: Any = ModuleType("huggingface_hub.errors")
    errors.EntryNotFoundError, errors.LocalEntryNotFoundError = NoEntryError, NotCachedError
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    monkeypatch.setattr(hub, "find_spec", lambda name: ModuleSpec(name, None))
    if message is None:
        weights = load_model("org/name", hub_cache=tmp_path).weights
        assert weights is not None
        assert weights.total_bytes == 1000
        return
    with pytest.raises(InputError) as caught:
        load_model("org/name", hub_cache=tmp_path)
    (found,) = caught.value.problems
    assert found.startswith(message)


def test_import_writes_a_model_file_that_gives_the_same_report(tmp_path: Path) -> None:
    directory = tmp_path / "My-Model"
    directory.mkdir()
    write_shard(write_config(directory) / "model.safetensors", dict(llama_tensors("F32", CONFIG)))
    target = tmp_path / "my-model.yaml"
    result = run("import", str(directory), "-o", str(target))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    fields = yaml.safe_load(target.read_text())
    assert fields["config"] == CONFIG
    assert fields["name"] == "My-Model"
    assert fields["weights"]["bytes_by_dtype"] == {"F32": 4 * resolve(CONFIG, Origin("x")).parameters}
    assert plan(target) == plan(directory)
    assert run("import", str(target)).stdout == target.read_text()
    assert run("import", str(tmp_path / "none")).exit_code == 2
