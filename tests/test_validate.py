"""`planner validate`: scores against an engine's own figures and its logs, and files that hold something else."""

import gzip
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from planner import saved
from planner.catalog import DEFAULT_ENGINE
from planner.cli import app
from planner.engine_logs import COLUMNS, read_rows
from planner.errors import InputError
from planner.validate import score_memory
from tests import logs
from tests.scenarios import ENGINE, ORACLES

ORACLE = ORACLES / "kv_engine_oracle.json.gz"
MODEL = "openai/gpt-oss-120b"


def validate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["validate", *(str(argument) for argument in arguments)])


def scored(*arguments: str | Path, code: int) -> dict[str, Any]:
    result = validate(*arguments, "--format", "json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*arguments: str | Path) -> str:
    result = validate(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


# Memory


def test_memory_scores_the_whole_oracle(vendor_configs: Path) -> None:
    """Exit 3 for the weights of starcoder at TP 8, an artefact of the engine's run."""
    score = scored("memory", "--configs", vendor_configs, "--oracle", ORACLE, code=3)
    assert (score["rows"], score["equal"], score["refused"], score["mismatches"]) == (941, 941, 148, [])
    (artefact,) = score["weights_mismatches"]
    assert artefact.startswith("bigcode/starcoder on h100, tp 8")


def small(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, Any]:
    """The oracle of one model, with one variant changed."""
    oracle: dict[str, Any] = {"models": {MODEL: {"variants": deepcopy(ENGINE["models"][MODEL]["variants"][:2])}}}
    change(oracle["models"][MODEL]["variants"][0])
    return oracle


def set_length(field: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda run: run["lengths"]["16384"].__setitem__(field, value)


def unserved(run: dict[str, Any]) -> None:
    del run["lengths"]
    run["vllm_error"] = "no kernel"


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        (set_length("reserved_bytes", 7), "reserved bytes at 16384: 1208549376, the engine 7"),
        (set_length("held_bytes", 7), "held bytes at 16384: 608698368, the engine 7"),
        (set_length("reserved_blocks", [7, 7]), "reserved blocks at 16384: [1025, 1024], the engine [7, 7]"),
        (set_length("num_blocks_24GiB", 7), "blocks in 24 GiB: 43690, the engine 7"),
        (set_length("max_concurrency_24GiB", 7.5), "maximum concurrency at 16384: 21.3226, the engine 7.5"),
        (set_length("starts_24GiB", False), "starts at 16384: True, the engine False"),
        (lambda run: run.update(pool_bytes_per_block=7), "pool bytes per block: 589824, the engine 7"),
        (lambda run: run.update(block_size=7), "block size: 16, the engine 7"),
        (lambda run: run.update(state_bytes_per_request=7), "state bytes per request: 0, the engine 7"),
        (lambda run: run["groups"].pop(), "groups (layers, block): [[18, 16], [18, 16]], the engine [[18, 16]]"),
        (unserved, "planned, and the engine refuses it: no kernel"),
        (lambda run: run.update(tp=7), "refused, and the engine serves it: parallelism: tp 7 does not divide"),
    ],
)
def test_a_wrong_figure_is_reported(
    change: Callable[[dict[str, Any]], object], mismatch: str, vendor_configs: Path, tmp_path: Path
) -> None:
    oracle = tmp_path / "oracle.json"
    oracle.write_text(json.dumps(small(change)))
    arguments = ("memory", "--configs", vendor_configs, "--oracle", oracle)
    score = scored(*arguments, code=3)
    assert (score["rows"], score["equal"]) == (2, 1)
    assert any(mismatch in found for found in score["mismatches"])
    text = validate(*arguments)
    assert text.exit_code == 3
    assert text.stdout.startswith("rows 2, equal 1, ")
    assert mismatch in text.stdout


def test_wrong_weights_are_reported(vendor_configs: Path) -> None:
    score = score_memory(small(lambda run: run.update(rank0_param_bytes=7)), vendor_configs, DEFAULT_ENGINE)
    assert score.mismatches == []
    assert (score.weights_rows, score.weights_equal) == (1, 0)
    assert score.weights_mismatches == [f"{MODEL} on h100, tp 1, KV auto: weights 65,248,815,744 B, the engine 7 B"]


def test_a_right_oracle_ends_with_0(vendor_configs: Path, tmp_path: Path) -> None:
    oracle = tmp_path / "oracle.json.gz"
    oracle.write_bytes(gzip.compress(json.dumps(small()).encode()))
    assert scored("memory", "--configs", vendor_configs, "--oracle", oracle, code=0)["equal"] == 2


def test_a_model_without_a_config_is_a_mismatch_and_not_a_refusal(tmp_path: Path) -> None:
    score = score_memory(small(unserved), tmp_path, DEFAULT_ENGINE)
    assert (score.rows, score.equal, score.refused) == (2, 0, 0)
    assert all(found.endswith("openai__gpt-oss-120b: no such folder") for found in score.mismatches)


@pytest.mark.parametrize(
    "oracle",
    [
        {}, {"models": []}, {"models": {"a/b": []}}, {"models": {"a/b": {"variants": 7}}},
        {"models": {"a/b": {"variants": [{}]}}}, {"models": {"a/b": {"variants": [{"tp": 1, "lengths": [1]}]}}},
        {"models": {"a/b": {"variants": [{"tp": 1, "lengths": {"0": {}}}]}}},
        {"models": {"a/b": {"variants": [{"tp": 1, "lengths": {"x": {}}}]}}},
        {"models": {"a/b": {"variants": [{"tp": 1, "block_size_arg": "x"}]}}},
        {"models": {"a/b": {"variants": [{"tp": 1, "rank0_param_bytes": "7"}]}}},
        {"models": {"a/b": {"variants": [{"tp": 1, "groups": [[1]]}]}}},
        {"models": {}, "other_hardware_and_dtypes": {"h100": [{"model": "a/b"}]}},
        {"models": {}, "other_hardware_and_dtypes": [7]},
    ],
)  # fmt: skip
def test_an_oracle_of_another_form_is_refused(oracle: object, tmp_path: Path) -> None:
    path = tmp_path / "oracle.json"
    path.write_text(json.dumps(oracle))
    message = refused("memory", "--configs", tmp_path, "--oracle", path)
    assert message.startswith(f"planner: {path}: the oracle has ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("oracle", "message"),
    [
        ({"models": {}}, "models: no variants, so nothing is compared"),
        ({"models": {"a/b": {"variants": []}}}, "models: no variants, so nothing is compared"),
        ({"models": {"a/b": {"variants": [{"tp": 1}]}}}, "models.a/b.variants[0]: nothing to compare"),
        ({"models": {"a/b": {"variants": [{"tp": 1, "lengths": {}}]}}}, "models.a/b.variants[0]: nothing to compare"),
        (
            {"models": {"a/b": {"variants": [{"tp": 1, "lengths": {"16": {"held_bytez": 7}}}]}}},
            "models.a/b.variants[0]: nothing to compare: needed are `lengths` with reserved_blocks, ",
        ),
        (
            {
                "models": {},
                "other_hardware_and_dtypes": {
                    "b200": [{"model": "a/b", "tp": 1, "requested_block_size": None, "requested_kv_dtype": "auto"}]
                },
            },
            "other_hardware_and_dtypes.b200[0]: nothing to compare",
        ),
    ],
)
def test_an_oracle_with_nothing_to_compare_is_refused(oracle: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "oracle.json"
    path.write_text(json.dumps(oracle))
    found = refused("memory", "--configs", tmp_path, "--oracle", path)
    assert found.startswith(f"planner: {path}: {message}")
    assert found.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("o.json", b"[]", "a mapping of fields is needed, not a list"),
        ("o.json", b"", "1: is not JSON: "),
        ("o.json.gz", b"not gzip", "cannot be read as gzip: "),
        ("o.json.gz", gzip.compress(b"{}", mtime=0)[:-6], "cannot be read as gzip: "),
        ("o.json.gz", gzip.compress(b"\xff\xfe", mtime=0), "is not UTF-8 text"),
    ],
)
def test_an_oracle_that_is_no_json(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert refused("memory", "--configs", tmp_path, "--oracle", path).startswith(
        f"planner: {path}:{'' if message[0].isdigit() else ' '}{message}"
    )


def test_configs_that_are_nowhere(tmp_path: Path) -> None:
    message = refused("memory", "--configs", tmp_path / "none", "--oracle", ORACLE)
    assert message.startswith(f"planner: {tmp_path / 'none'}: no such folder")


@pytest.mark.parametrize("command", ["memory", "logs"])
def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved.MAX_ORACLE_BYTES <= 2**30
    monkeypatch.setattr(saved, "MAX_ORACLE_BYTES", 10**6)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (10**6 + 1)))
    arguments = ("--configs", tmp_path, "--oracle", bomb) if command == "memory" else (bomb,)
    assert "unpacks to more than the 1,000,000 bytes" in refused(command, *arguments)


def test_a_pipe_shows_no_progress(vendor_configs: Path, tmp_path: Path) -> None:
    oracle = tmp_path / "oracle.json"
    oracle.write_text(json.dumps(small()))
    assert validate("memory", "--configs", vendor_configs, "--oracle", oracle).stderr == ""


# Logs


def test_logs_score_every_row(vendor_configs: Path) -> None:
    score = scored("logs", logs.FILE, "--configs", vendor_configs, code=0)
    assert (score["rows"], score["refused"], score["mismatches"]) == (19, 0, [])
    assert score["pool_within"] == 19
    assert (score["concurrency_rows"], score["concurrency_within"]) == (17, 17)
    assert score["worst_pool_gib"] <= 1
    text = validate("logs", logs.FILE, "--configs", vendor_configs)
    assert "pool within 1 GiB 19" in text.stdout
    assert len(text.stdout.splitlines()) == 20


def server_log(
    pool: float = 58.11,
    concurrency: str = "58.11",
    model: str = "meta-llama/Llama-3.1-8B-Instruct",
    options: str = "quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda",
) -> str:
    """What a vLLM server prints while it starts, as far as planner reads it."""
    core, worker = "(EngineCore_DP0 pid=271) INFO 03-02 10:00:0", "[gpu_worker.py:375]"
    return "\n".join(
        (
            "(APIServer pid=1) INFO 03-02 10:00:01 [utils.py:278] non-default args: {'model': "
            f"'{model}', 'max_model_len': 8192, 'gpu_memory_utilization': 0.95}}",
            "(APIServer pid=1) INFO 03-02 10:00:01 [scheduler.py:226] Chunked prefill is enabled with "
            "max_num_batched_tokens=8192.",
            f"{core}2 [core.py:112] Initializing a V1 LLM engine (v0.19.1) with config: model='{model}', "
            f"speculative_config=None, tokenizer='{model}', trust_remote_code=False, dtype=torch.bfloat16, "
            "max_seq_len=8192, download_dir=None, load_format=auto, tensor_parallel_size=1, pipeline_parallel_size=1, "
            f"data_parallel_size=1, {options}, seed=0",
            f"{core}8 {worker} Available KV cache memory: {pool} GiB",
            f"{core}9 [kv_cache_utils.py:1314] GPU KV cache size: 476,016 tokens",
            f"{core}9 [kv_cache_utils.py:1319] Maximum concurrency for 8,192 tokens per request: {concurrency}x",
            "(APIServer pid=1) INFO 03-02 10:00:10 [api_server.py:1] Application startup complete.",
        )
    )


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "server.log"
    path.write_text(text, "utf-8")
    return path


def test_a_server_log_is_read(vendor_configs: Path, tmp_path: Path) -> None:
    arguments = ("logs", written(tmp_path, server_log()), "--configs", vendor_configs, "--gpu", "h100-sxm")
    score = scored(*arguments, code=0)
    assert (score["rows"], score["pool_within"], score["concurrency_within"]) == (1, 1, 1)
    (line,) = score["lines"]
    assert line.startswith("line 6, meta-llama/Llama-3.1-8B-Instruct tp 1 pp 1: pool 58.")
    assert line.endswith("(logged 58.11), concurrency 58.11 (logged 58.11)")


def test_what_a_server_log_says() -> None:
    (row,) = read_rows(server_log(), "x")
    assert (row.line, row.model, row.engine, row.gpu) == (6, "meta-llama/Llama-3.1-8B-Instruct", "vllm-0.19", None)
    assert (str(row.utilization), row.tp, row.pp, row.max_model_len) == ("0.95", 1, 1, 8192)
    assert (row.max_num_batched_tokens, row.kv_dtype, row.dtype, row.quantization) == (8192, "auto", "bfloat16", None)
    assert (str(row.kv_gib), str(row.concurrency)) == ("58.11", "58.11")


@pytest.mark.parametrize(
    ("printed", "read"),
    [("None", None), ("fp8", "fp8"), ("compressed-tensors", None), ("modelopt", None), ("awq_marlin", None)],
)
def test_a_quantisation_of_the_checkpoint_is_left_to_its_config(printed: str, read: str | None) -> None:
    """The engine prints it like one that it applies while loading."""
    (row,) = read_rows(server_log(options=f"quantization={printed}, quantization_config=None, kv_cache_dtype=fp8"), "x")
    assert (row.quantization, row.kv_dtype) == (read, "fp8")


def test_a_quantised_checkpoint_in_a_log(vendor_configs: Path, tmp_path: Path) -> None:
    """Planned as its config says; the logged figures are another model's."""
    log = server_log(model="nvidia/Llama-3.1-70B-Instruct-FP8", options="quantization=modelopt, kv_cache_dtype=auto")
    score = scored("logs", written(tmp_path, log), "--configs", vendor_configs, "--gpu", "b200-sxm", code=3)
    assert (score["rows"], score["refused"]) == (1, 0)


def test_the_fullest_rank_and_every_engine_of_a_log_count() -> None:
    ranks = server_log().replace(
        "(EngineCore_DP0 pid=271) INFO 03-02 10:00:09 [kv_cache_utils.py:1314]",
        "(Worker_TP1 pid=272) INFO 03-02 10:00:08 [gpu_worker.py:375] Available KV cache memory: 57.5 GiB\n"
        "(EngineCore_DP0 pid=271) INFO 03-02 10:00:09 [kv_cache_utils.py:1314]",
    )
    rows = read_rows(f"{ranks}\n{server_log(20, '20.00')}", "x")
    assert [str(row.kv_gib) for row in rows] == ["57.5", "20"]
    assert [row.line for row in rows] == [7, 14]


@pytest.mark.parametrize(
    ("pool", "concurrency", "mismatch"),
    [(50, "50.00", "pool +8.20 GiB off"), (58.11, "29.05", "concurrency 58.11, logged 29.05")],
)
def test_a_log_that_differs_is_reported(
    pool: float, concurrency: str, mismatch: str, vendor_configs: Path, tmp_path: Path
) -> None:
    log = written(tmp_path, server_log(pool, concurrency))
    score = scored("logs", log, "--configs", vendor_configs, "--gpu", "h100-sxm", code=3)
    assert score["mismatches"] == [f"line 6, meta-llama/Llama-3.1-8B-Instruct: {mismatch}"]


@pytest.mark.parametrize(
    ("arguments", "model", "mismatch"),
    [
        ((), "meta-llama/Llama-3.1-8B-Instruct", "the log does not name the device: give --gpu"),
        (("--gpu", "h100-sxm"), "/root/models/mine", "no such file"),
        (("--gpu", "h100-sxm"), "mine", "mine is neither a folder of --configs nor a shipped model"),
        (("--gpu", "h100-sxm"), "\x1b[31mred", "is neither a folder of --configs"),
    ],
)
def test_a_start_up_that_cannot_be_planned_is_counted_and_named(
    arguments: tuple[str, ...], model: str, mismatch: str, vendor_configs: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, server_log(model=model))
    result = validate("logs", path, "--configs", vendor_configs, *arguments)
    assert result.exit_code == 3
    assert "rows 1, refused 1, " in result.stdout
    assert mismatch in result.stdout or mismatch == "no such file"
    assert "\x1b" not in result.stdout


def test_a_log_without_a_pool_is_refused_and_has_no_worst(vendor_configs: Path, tmp_path: Path) -> None:
    path = written(tmp_path, server_log().replace("58.11 GiB", "0.00 GiB"))
    arguments = ("logs", path, "--configs", vendor_configs, "--gpu", "h100-sxm")
    result = validate(*arguments)
    assert result.exit_code == 3
    assert "refused: the log's KV cache memory is 0.00 GiB: no pool to compare with" in result.stdout
    assert "pool within 1 GiB 0, concurrency" in result.stdout
    assert scored(*arguments, code=3)["worst_pool_gib"] is None


HOSTILE_LINES = (
    "gpu_memory_utilization=0.9.5", "gpu_memory_utilization: .", "max_num_batched_tokens=0",
    "Available KV cache memory: 1.2.3 GiB", "Available KV cache memory: ... GiB", "Available KV cache memory: 0.0 GiB",
    "Available KV cache memory: -3.1 GiB", "Maximum concurrency for 0 tokens per request: 1.0x",
    "Maximum concurrency for ,,, tokens per request: 1.0x", "Maximum concurrency for 8,192 tokens per request: 1..0x",
    "Available KV cache memory: \u0661\u0662 GiB", "x" * 10**5, "\x00\x1b", "#", ",", "tensor_parallel_size=0",
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_lines_that_only_look_like_figures(line: str, vendor_configs: Path, tmp_path: Path) -> None:
    """They are passed over: what is left is a whole start-up, or none."""
    lines = server_log().splitlines()
    for at in range(1, len(lines) + 1):
        path = written(tmp_path, "\n".join((*lines[:at], line, *lines[at:])))
        result = validate("logs", path, "--configs", vendor_configs, "--gpu", "h100-sxm")
        assert result.exit_code in (0, 2, 3), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
    with pytest.raises(InputError, match="holds no start-up figures"):
        read_rows(line, "x")


ROW = "m,openai__gpt-oss-120b,h100-sxm,vllm-0.19,1,1,8192,bf16,20.5,10.5"
HEADER = "model," + ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW.replace("20.5", "x"), "kv_gib: a number is needed, not 'x'"),
        (ROW.replace("20.5", ""), "kv_gib: a number is needed, not ''"),
        (ROW.replace("20.5", "0"), "kv_gib: '0' is out of range"),
        (ROW.replace("20.5", "nan"), "kv_gib: 'nan' is out of range"),
        (ROW.replace("20.5", "-1"), "kv_gib: '-1' is out of range"),
        (ROW.replace("20.5", "1e400"), "kv_gib: '1e400' is out of range"),
        (ROW.replace(",1,1,", ",1.5,1,"), "tp: a whole number is needed, not '1.5'"),
        (ROW.replace(",1,1,", ",1,two,"), "pp: a number is needed, not 'two'"),
        (ROW.replace("8192", "0.5"), "max_model_len: a whole number is needed, not '0.5'"),
        (ROW.replace("openai__gpt-oss-120b", ""), "config: missing, and needed"),
        ("m", "config: missing, and needed"),
        ("m,openai__gpt-oss-120b,h100-sxm", "tp: a number is needed, not ''"),
        (ROW + "," + "x" * 200_000, "is not CSV: field larger than field limit"),
    ],
)
def test_a_bad_csv_row_is_named_by_file_and_line(row: str, message: str, tmp_path: Path) -> None:
    """The line is the file's own, comments counted."""
    path = tmp_path / "logs.csv"
    path.write_text(f"# a comment\n{HEADER}\n{ROW}\n# another\n{row}\n")
    assert refused("logs", path).startswith(f"planner: {path}:5: {message}")


def test_a_csv_without_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("# a comment\nconfig,kv_gib\nx,1\n")
    assert refused("logs", path).startswith(f"planner: {path}:2: columns missing: gpu, engine, tp, ")


def test_cells_beyond_the_columns_are_left_out() -> None:
    (row,) = read_rows(f"{HEADER}\n{ROW},more,and more\n", "x")
    assert (row.tp, str(row.concurrency)) == (1, "10.5")


def test_lines_of_a_csv_are_the_files_own() -> None:
    rows = read_rows(logs.FILE.read_text("utf-8"), "x")
    lines = logs.FILE.read_text("utf-8").splitlines()
    assert [lines[row.line - 1].split(",")[1] for row in rows] == [row.model for row in rows]
