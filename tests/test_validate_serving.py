"""Measured serving replayed: errors on a sample, and what the commands do with good and hostile files."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.catalog import load_model
from planner.cli import app
from planner.errors import InputError
from planner.inputs import Model
from planner.replica import overlaps, quantises
from planner.row_models import form_in_name, gpu_name, plain_name, row_model
from planner.serving_rows import read_latency, read_throughput
from planner.validate_serving import ServingScore, Slice, lines, prepare, score_serving
from tests.scenarios import ORACLES

LATENCY, THROUGHPUT = ORACLES / "serving_latency.csv", ORACLES / "trtllm_throughput.csv"
HEADER = "id,backend,model_path,system,isl,osl,tp_size,concurrency,silicon_ttft_ms,silicon_tpot_ms"
ROW = "a,vllm,meta-llama/Llama-3.1-8B-Instruct,h100-sxm,1024,256,1,16,50,9"
RUNNER = CliRunner()


def rows_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join((header, *lines)) + "\n", "utf-8")
    return path


def find(score: ServingScore, metric: str, value: str) -> Slice:
    return next(each for each in score.slices if (each.metric, each.value) == (metric, value))


def test_the_sample_is_predicted_whole_and_within_bounds() -> None:
    rows = read_latency(LATENCY.read_text("utf-8"), "rows")
    score = score_serving(rows, None)
    assert (score.rows, score.measured, len(score.predictions), score.refused) == (56, 56, 56, {})
    for metric, value, median, p90 in (
        ("tpot_ms", "dense", 8, 18),
        ("tpot_ms", "MoE", 14, 37),
        ("ttft_ms", "dense, InferenceX", 25, 65),
        ("ttft_ms", "MoE, InferenceX", 42, 82),
    ):
        found = find(score, metric, value)
        assert found.refused == 0
        assert found.median_percent <= median, found
        assert found.p90_percent <= p90, found


def test_we_beat_the_peer_on_the_samples_tpot() -> None:
    found = find(score_serving(read_latency(LATENCY.read_text("utf-8"), "rows"), None), "tpot_ms", "")
    assert found.peer_median_percent is not None
    assert found.peer_p90_percent is not None
    assert found.median_percent < found.peer_median_percent
    assert found.p90_percent < found.peer_p90_percent
    assert found.peer_rows < found.rows


def test_saturated_throughput_within_bounds() -> None:
    score = score_serving(read_throughput(THROUGHPUT.read_text("utf-8"), "rows"), None)
    found = find(score, "tokens_per_s", "")
    assert found.refused == 0
    assert found.median_percent <= 7
    assert found.p90_percent <= 16


def test_engines_whose_norms_do_not_quantise() -> None:
    assert quantises("tensorrt-llm", "0.20")
    assert not any(quantises(*run) for run in (("tensorrt-llm", "1.0.0rc3"), ("tensorrt-llm", ""), ("vllm", "0.14.0")))


def test_constants_of_h100_extrapolate_to_h200() -> None:
    rows = [row for row in read_latency(LATENCY.read_text("utf-8"), "rows") if row.gpu == "h200-sxm"]
    own, other = score_serving(rows, None), score_serving(rows, None, "h100-sxm")
    assert own.predictions != other.predictions
    assert find(other, "tpot_ms", "").median_percent <= 20


def test_the_command_writes_predictions_and_refusals(tmp_path: Path) -> None:
    path = rows_file(tmp_path, ROW, ROW.replace("a,vllm,meta-llama/Llama-3.1-8B-Instruct", "b,vllm,nobody/Nothing-9B"))
    out = tmp_path / "out.csv"
    found = RUNNER.invoke(app, ["validate", "serving", str(path), "--predictions", str(out)])
    assert found.exit_code == 0
    assert "line 3, b: refused: no config is known for 'nobody/Nothing-9B'" in found.stderr
    written = list(csv.reader(out.read_text("utf-8").splitlines()))
    assert [line[0] for line in written] == ["id", "a"]
    assert written[0] == ["id", "ttft_ms", "tpot_ms"]
    assert "TPOT" in found.stdout
    assert "refused 1" in found.stdout
    again = RUNNER.invoke(app, ["validate", "serving", str(path), "--predictions", str(out)])
    assert again.exit_code == 2


def test_what_cannot_be_written_is_refused_before_any_row_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.validate_serving.score_serving", None)
    rows, out = rows_file(tmp_path, ROW), tmp_path / "out.csv"
    command = ["validate", "serving", str(rows), "--predictions", str(out)]
    found = RUNNER.invoke(app, [*command, "--format", "yaml"])
    assert (found.exit_code, out.exists()) == (2, False)
    out.write_text("mine", "utf-8")
    found = RUNNER.invoke(app, command)
    assert (found.exit_code, found.stderr, out.read_text("utf-8")) == (
        2, f"planner: {out}: exists already; --force overwrites it\n", "mine"
    )  # fmt: skip


def test_rows_that_differ_in_their_lengths_read_a_models_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def load(ref: str) -> Model:
        read.append(ref)
        return load_model(ref)

    monkeypatch.setattr("planner.row_models.load_model", load)
    lines = [ROW.replace("Llama-3.1-8B", "Llama-3.2-3B").replace("1024", str(700 + n)) for n in range(5)]
    score = score_serving(read_latency("\n".join((HEADER, *lines)), "rows"), None)
    assert read == ["llama-3.2-3b"]
    assert len({each["tpot_ms"] for each in score.predictions.values()}) == 5


def test_refused_rows_count_against_us(tmp_path: Path) -> None:
    path = rows_file(tmp_path, ROW, ROW.replace("Llama-3.1-8B-Instruct", "Nothing-9B"))
    found = RUNNER.invoke(app, ["validate", "serving", str(path), "--format", "json"])
    first = json.loads(found.stdout)["slices"][0]
    assert (first["rows"], first["refused"]) == (2, 1)
    assert first["p90_percent"] > 90


def test_a_packed_file_without_measurements_is_predicted_only(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv.gz", tmp_path / "out.csv"
    header, row = HEADER.rsplit(",", 2)[0], ROW.rsplit(",", 2)[0]
    path.write_bytes(gzip.compress(f"{header}\n{row}\n".encode()))
    found = RUNNER.invoke(app, ["validate", "serving", str(path), "--predictions", str(out), "--format", "json"])
    assert found.exit_code == 0
    counts = {"rows": 1, "measured": 0, "predicted": 1, "refused": [], "tight": [], "slices": []}
    assert json.loads(found.stdout) == counts | {"calibrations": {"h100-sxm vllm": "h100-sxm-vllm"}}
    _, _, tpot = out.read_text("utf-8").splitlines()[1].split(",")
    assert 5 < float(tpot) < 12


def test_throughput_command(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    found = RUNNER.invoke(app, ["validate", "throughput", str(THROUGHPUT), "--predictions", str(out)])
    assert found.exit_code == 0
    lines = out.read_text("utf-8").splitlines()
    assert lines[0] == "id,output_tokens_per_s"
    assert len(lines) == 14


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (ROW.replace("1024", "-5"), "rows.csv:2: isl: '-5' is out of range: accepted is 1 to "),
        (ROW.replace(",16,", ",0,"), "rows.csv:2: concurrency: '0' is out of range: accepted is 1 to "),
        (ROW.replace(",16,", ",,"), "rows.csv:2: concurrency: missing, and needed"),
        (ROW.replace("1024", "many"), "rows.csv:2: isl: a number is needed, not 'many'"),
        (ROW.replace("1024", "10.5"), "rows.csv:2: isl: a whole number is needed"),
        (ROW.replace("1024", "NaN"), "rows.csv:2: isl: 'NaN' is out of range"),
        (ROW.replace("1024", ""), "rows.csv:2: isl: missing, and needed"),
        (ROW.replace("1024", "9" * 40), "rows.csv:2: isl: "),
        (ROW.replace("a,vllm", ",vllm"), "rows.csv:2: id: missing, and needed"),
        (f"{ROW},1,2", "rows.csv:2: has more cells than the header"),
        (ROW.replace("a,", f"{'a' * 400},"), "rows.csv:2: id: longer than 300 characters"),
        (ROW.replace("a,", '"a,'), "rows.csv:2: is not CSV"),
        (
            ROW.replace(",50,", ",1e-5000,"),
            "rows.csv:2: silicon_ttft_ms: '1E-5000' is out of range: accepted is 0, for ",
        ),
        (ROW.replace(",50,", ",1e-300,"), "rows.csv:2: silicon_ttft_ms: '1E-300' is out of range: accepted is 0"),
    ],
)
def test_a_hostile_row_is_refused_at_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    found = RUNNER.invoke(app, ["validate", "serving", str(rows_file(tmp_path, line))])
    assert found.exit_code == 2
    assert complaint in found.stderr


@pytest.mark.parametrize("named", ["a\u2028b", "a\x85b", "a\x0bb", '"a\nb"', '"a,""b"""'])
def test_an_id_comes_back_as_it_was(tmp_path: Path, named: str) -> None:
    out = tmp_path / "out.csv"
    path = rows_file(tmp_path, ROW.replace("a,", f"{named},"))
    found = RUNNER.invoke(app, ["validate", "serving", str(path), "--predictions", str(out)])
    assert found.exit_code == 0, found.stderr
    with path.open(encoding="utf-8", newline="") as given, out.open(encoding="utf-8", newline="") as written:
        assert [row["id"] for row in csv.DictReader(written)] == [row["id"] for row in csv.DictReader(given)]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (f",{HEADER}", f"0,{ROW}"),  # a data frame's index has no name
        (f"{HEADER},,", f"{ROW},,"),
        (HEADER, f"{ROW},,"),
        (HEADER.replace(",", " , "), ROW.replace(",", " , ")),
    ],
)
def test_cells_that_say_nothing_are_passed_over(header: str, line: str) -> None:
    assert read_latency(f"{header}\n{line}\n", "rows.csv") == read_latency(f"{HEADER}\n{ROW}\n", "rows.csv")


@pytest.mark.parametrize("header", ["id,isl", HEADER.replace("system", "id"), ""])
def test_a_file_without_its_columns_is_refused(tmp_path: Path, header: str) -> None:
    found = RUNNER.invoke(app, ["validate", "serving", str(rows_file(tmp_path, ROW, header=header))])
    assert found.exit_code == 2
    assert "rows.csv" in found.stderr


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("vllm", "ollama", "backend 'ollama' is not known"),
        ("h100-sxm", "h900", "accelerator 'h900' is not shipped"),
        ("h100-sxm", "t4", "fits"),
        (",1,16,", ",3,16,", "tp 3 does not divide"),
    ],
)
def test_what_planner_cannot_run_is_a_refusal_with_its_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    found = RUNNER.invoke(app, ["validate", "serving", str(rows_file(tmp_path, ROW.replace(old, new)))])
    assert found.exit_code == 3
    assert reason in found.stderr


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--configs=nowhere", "nowhere: no such folder"), ("--calibrated-on=t4", "calibration 't4-vllm' is not shipped")],
)
def test_a_wrong_option_is_bad_usage(tmp_path: Path, option: str, reason: str) -> None:
    found = RUNNER.invoke(app, ["validate", "serving", str(rows_file(tmp_path, ROW)), option])
    assert found.exit_code == 2
    assert reason in found.stderr


def test_a_folder_of_configs_is_searched_by_the_usual_names(tmp_path: Path) -> None:
    model = row_model("meta-llama/Llama-3.1-8B", "", "vllm", None)
    for folder, layers in (("me__Tiny-8B-Instruct", 8), ("me__Tiny-8B-Instruct-FP8", 4)):
        (tmp_path / folder).mkdir()
        config = {**model.config, "num_hidden_layers": layers}
        (tmp_path / folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert row_model("you/Tiny-8B", "", "vllm", tmp_path).config["num_hidden_layers"] == 8
    assert row_model("you/Tiny-8B", "fp8", "vllm", tmp_path).config["num_hidden_layers"] == 4
    assert row_model("me/Tiny-8B-Instruct", "fp8", "vllm", tmp_path).config["num_hidden_layers"] == 8


def test_names_that_benchmarks_use() -> None:
    assert plain_name("meta-llama/Meta-Llama-3.1-70B-Instruct") == plain_name("nvidia__Llama-3.3-70B-Instruct-FP8")
    assert plain_name("Qwen/Qwen3-235B-A22B-FP8") == "qwen3-235b-a22b"
    assert form_in_name("nvidia/Qwen3-235B-A22B-NVFP4") == "nvfp4"


@pytest.mark.parametrize(
    ("system", "gpu"),
    [
        ("H100_SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200-sxm"),
        ("h200_nvl", "h200-nvl"),
        ("b200", "b200-sxm"),
        ("gb200_sxm", "gb200"),
        ("GB300-NVL72", "gb300"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("AMD Instinct MI300X OAM", "mi300x"),
    ],
)
def test_gpus_are_known_as_drivers_and_benchmarks_spell_them(system: str, gpu: str) -> None:
    assert gpu_name(system) == gpu


@pytest.mark.parametrize(
    ("model", "shipped"),
    [
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b"),
        ("LLAMA3.1_70B", "llama-3.1-70b"),
        ("GPT_OSS_120B", "gpt-oss-120b"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "llama-3.3-nemotron-super-49b-v1"),
        ("nvidia/Nemotron-H-56B-Base-8K", "nemotron-h-56b-8k"),
        ("Qwen/Qwen2-72B-Instruct", "qwen2.5-72b"),
        ("QWEN3_235B", "qwen3-235b-a22b"),
        ("llama-4-maverick", "llama-4-maverick-17b-128e"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5-nvfp4"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "deepseek-v4-pro-fp8"),
        ("deepseek-ai/DeepSeek-V4-Pro", "deepseek-v4-pro"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama-4-maverick-17b-128e"),
    ],
)
def test_releases_of_the_same_sizes_are_known_under_their_names(model: str, shipped: str) -> None:
    assert row_model(model, "", "vllm", None).name == shipped


@pytest.mark.parametrize(
    ("model", "precision", "backend", "declared"),
    [
        ("meta-llama/Llama-3.1-8B", "", "vllm", None),
        ("meta-llama/Llama-3.1-8B", "fp8", "trtllm", "'quant_algo': 'FP8'"),
        ("meta-llama/Llama-3.1-8B", "fp8_block", "sglang", "'weight_block_size': [128, 128]"),
        ("deepseek-ai/DeepSeek-R1", "fp8", "trtllm", "'weight_block_size': [128, 128]"),
        ("deepseek-ai/DeepSeek-R1", "fp4", "trtllm", "'quant_algo': 'NVFP4'"),
        ("openai/gpt-oss-120b", "fp8", "vllm", "mxfp4"),
        ("Qwen/Qwen3-32B-FP8", "bf16", "vllm", None),
        ("nvidia/DeepSeek-R1-0528-FP4", "", "sglang", "'quant_algo': 'NVFP4'"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "", "vllm", "'quant_method': 'fp8'"),
        ("meta-llama/Llama-3.1-8B", "w8a8", "vllm", "'num_bits': 8, 'type': 'int'"),
        ("meta-llama/Llama-3.1-8B", "int4_wo", "trtllm", "'num_bits': 4, 'type': 'int'"),
        ("meta-llama/Llama-3.1-8B", "w4a8_mxfp4_mxfp8", "trtllm", "'quant_algo': 'NVFP4'"),
        ("meta-llama/Llama-3.1-8B", "auto", "vllm", None),
        ("Qwen/Qwen3.5-397B-A17B", "fp8", "vllm", "'block_structure': [128, 128]"),
        ("Qwen/Qwen3.5-397B-A17B", "fp8", "trtllm", "'quant_algo': 'FP8'"),
        ("moonshotai/Kimi-K2.5", "fp4", "trtllm", "'quant_algo': 'NVFP4'"),
        ("deepseek-ai/DeepSeek-V4-Flash", "fp4", "sglang", "'weight_block_size': [128, 128]"),
    ],
)
def test_the_weights_form_is_the_rows_or_the_checkpoints(
    model: str, precision: str, backend: str, declared: str | None
) -> None:
    found = row_model(model, precision, backend, None).config.get("quantization_config")
    assert declared in str(found) if declared else found is None


def test_a_name_that_several_models_begin_with_is_refused() -> None:
    with pytest.raises(InputError, match="no config is known for 'openai/gpt-oss'"):
        row_model("openai/gpt-oss", "", "vllm", None)


def test_schedulers_that_overlap() -> None:
    vllm = [overlaps("vllm", version) for version in ("", "0.12.0", "0.14.0", "0.18.0", "1.0")]
    assert vllm == [True, False, True, True, True]
    assert overlaps("sglang", "0.5.1.post1")
    (row,) = read_latency(f"{HEADER},backend_version\n{ROW},v0.12.0", "rows")
    assert not overlaps("vllm", row.version)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InputError, match="weights in 'q4_k_m' are not known"):
        row_model("meta-llama/Llama-3.1-8B", "q4_k_m", "vllm", None)


def test_lengths_over_the_configs_positions_are_predicted() -> None:
    line = ROW.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B").replace("1024", "60000")
    (row,) = read_latency(f"{HEADER}\n{line}", "rows")
    score = score_serving([row], None)
    assert score.refused == {}
    assert score.predictions[0]["ttft_ms"] > 1000


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ("Qwen/Qwen3.5-397B-A17B", "fp8"),
        ("Qwen/Qwen3.5-397B-A17B", "fp8_block"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "fp8"),
        ("zai-org/GLM-4.5", "fp8"),
        ("moonshotai/Kimi-K2.5", "int4_wo"),
        ("Qwen/Qwen2.5-72B-Instruct", "int4"),
    ],
)
def test_forms_that_rows_give_a_config_divide_over_its_ranks(model: str, precision: str) -> None:
    rows = read_latency(f"{HEADER},precision\na,vllm,{model},b300,1024,256,8,16,,,{precision}", "rows")
    score = score_serving(rows, None)
    assert score.refused == {}


PARALLEL = f"{HEADER},batch_size,attention_dp_size,moe_tp_size,moe_ep_size,gemm_quant_mode,moe_quant_mode"


@pytest.mark.parametrize(
    ("tp", "concurrency", "rest", "expected"),
    [
        (1, 512, "64,8,1,8,,", (1, 8, 8, 512)),
        (1, 64, "64,8,1,8,,", (1, 8, 8, 64)),
        (8, 512, "64,8,1,8,,", (1, 8, 8, 512)),
        (8, 512, "64,2,1,8,,", (4, 2, 8, 128)),
        (4, 512, "64,2,1,8,,", (4, 2, 8, 128)),
        (8, 64, "64,1,8,1,,", (8, 1, 1, 64)),
        (8, 128, "64,1,8,1,,", (8, 1, 1, 64)),
    ],
)
def test_ranks_and_load_of_data_parallel_attention(
    tp: int, concurrency: int, rest: str, expected: tuple[int, int, int, int]
) -> None:
    (row,) = read_latency(f"{PARALLEL}\na,sglang,m,h100,1024,256,{tp},{concurrency},,,{rest}", "rows")
    assert (row.tp, row.dp, row.moe_ep, row.concurrency) == expected


@pytest.mark.parametrize("name", ["TRTLLM", "TensorRT-LLM", "tensorrt_llm", "dynamo-trt"])
def test_engines_are_known_as_benchmarks_spell_them(name: str) -> None:
    (row,) = read_latency(f"{HEADER}\n{ROW.replace('vllm', name)}", "rows")
    assert row.backend == "trtllm"


@pytest.mark.parametrize(("backend", "dp", "tokens"), [("sglang", 1, 8192), ("sglang", 8, 1024), ("vllm", 8, 8192)])
def test_sglangs_data_parallel_ranks_share_its_chunk(backend: str, dp: int, tokens: int) -> None:
    text = f"{PARALLEL}\na,{backend},deepseek-ai/DeepSeek-R1,h200,1024,256,{8 // dp},64,,,8,{dp},1,8,,"
    (row,) = read_latency(text, "rows")
    assert prepare(row, None, None).replica.chunk_tokens == tokens


@pytest.mark.parametrize(
    ("source", "backend", "version", "mixes"),
    [
        ("nvidia-gap-analysis", "sglang", "0.5.6.post2", True),
        ("nvidia-gap-analysis", "sglang", "0.5.1.post1", False),
        ("InferenceX", "sglang", "0.5.6.post2", False),
        ("", "sglang", "", False),
        ("nvidia-gap-analysis", "vllm", "0.12.0", True),
    ],
)
def test_prompts_share_sglangs_steps_where_its_deployments_mix_chunks(
    source: str, backend: str, version: str, mixes: bool
) -> None:
    (row,) = read_latency(f"{HEADER},src,backend_version\n{ROW.replace('vllm', backend)},{source},{version}", "rows")
    assert prepare(row, None, None).replica.mixes is mixes


def test_experts_say_the_form_where_the_rest_is_in_16_bits() -> None:
    modes = ("bfloat16,nvfp4", "fp8_block,fp8", "bfloat16,", "bfloat16,bfloat16")
    text = "\n".join((PARALLEL, *(f"a,sglang,m,h100,1024,256,8,64,,,64,1,8,1,{each}" for each in modes)))
    assert [row.precision for row in read_latency(text, "rows")] == ["nvfp4", "fp8_block", "bfloat16", "bfloat16"]


def test_a_row_that_ran_takes_the_memory_that_weights_leave() -> None:
    """Llama 3.1 70B in 16 bits on two H100: SGLang's default reserve leaves its cache nothing."""
    line = "{0},{1},meta-llama/Llama-3.1-70B,h100-sxm,1024,256,{2},8,,"
    rows = [line.format("a", "sglang", 2), line.format("b", "sglang", 4), line.format("c", "sglang", 1)]
    score = score_serving(read_latency("\n".join((HEADER, *rows)), "rows"), None)
    assert score.tight == {0: "a"}
    assert list(score.predictions) == [0, 1]
    assert "not one request of 1,152 tokens fits beside the weights" in score.refused[2]
    assert "rows that fit without the engine's reserve only: 1, first a" in list(lines(score))


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_four_bits_are_no_slower_where_the_calibration_never_saw_them(backend: str) -> None:
    lines = (f"{form},{backend},deepseek-ai/DeepSeek-R1,mi355x,1024,1024,8,64,,,{form}" for form in ("fp8", "fp4"))
    rows = read_latency("\n".join((f"{HEADER},precision", *lines)), "rows")
    score = score_serving(rows, None)
    assert score.predictions[1]["tpot_ms"] < score.predictions[0]["tpot_ms"]
    assert score.calibrations == {
        f"mi355x {backend}": f"h100-sxm-{backend} (another GPU's: h100-sxm, on this one's datasheet peaks)"
    }


@pytest.mark.parametrize("gpu", ["b200-sxm", "gb200"])
@pytest.mark.parametrize("concurrency", [1, 16, 64])
def test_narrow_weights_of_tensorrt_llm_are_no_slower_than_wider_ones(gpu: str, concurrency: int) -> None:
    """Its tables time fp8 and nvfp4 with a quantise of the inputs, which a step fuses into what comes before."""
    line = "{0},trtllm,meta-llama/Llama-3.1-70B,{1},1024,1024,8,{2},,,{0}"
    lines = (line.format(form, gpu, concurrency) for form in ("bf16", "fp8", "nvfp4"))
    score = score_serving(read_latency("\n".join((f"{HEADER},precision", *lines)), "rows"), None)
    bf16, fp8, fp4 = (score.predictions[place]["tpot_ms"] for place in range(3))
    assert fp4 < 1.05 * fp8 < 1.05 * bf16
