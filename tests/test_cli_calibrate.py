"""`planner calibrate` as a person runs it: end to end on the CPU, refused in one line, interrupted without a trace."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from planner.calibration_run import CalibrationRun
from planner.catalog import load_calibration
from planner.cli import app
from planner.cli_calibrate import _save
from planner.documents import validate
from planner.errors import InputError
from planner.origin import Origin
from planner.render import calibration as render
from planner.render import text
from tests.scenarios import ROOT

QUICK = ["calibrate", "--device", "cpu", "--quick"]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def refused(*arguments: str) -> tuple[int, str]:
    """(exit code, the one line on stderr)."""
    code, out, error = invoke(*arguments)
    assert out == ""
    assert error.count("\n") == 1, error
    return code, error


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str, float]:
    """(the file, stdout, stderr, seconds) of a real quick run."""
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("scipy", reason="needs scipy")
    file = tmp_path_factory.mktemp("run") / "cpu.yaml"
    command = [sys.executable, "-m", "planner", *QUICK, "-o", str(file)]
    start = time.monotonic()
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return file, result.stdout, result.stderr, time.monotonic() - start


def test_a_quick_run_measures_every_family_and_backend(quick_run: tuple[Path, str, str, float]) -> None:
    fields = yaml.safe_load(quick_run[0].read_text("utf-8"))
    seen = {(p["family"], p["backend"], p["shape"].get("dtype")) for p in fields["points"] if p["verdict"] != "skipped"}
    attention = {
        (family, "flash_attention", dtype)
        for family in ("decode_attention", "prefill_attention")
        for dtype in ("float32", "bfloat16")
    }
    assert attention <= seen
    assert {("gemm", "mm", "float32"), ("gemm", "mm", "bfloat16"), ("collective", "gloo", "float32")} <= seen
    assert {("bandwidth", "copy", None), ("bandwidth", "read", None)} <= seen
    assert {p["verdict"] for p in fields["points"]} <= {"ok", "noisy"}, "nothing is wrong or skipped here"
    for point in fields["points"]:
        assert point["median_us"] > 0
        assert point.get("error", 0.0) <= point["error_limit"]
        assert point["achieved_gb_per_s"] > 0
    flash = [p for p in fields["points"] if p["backend"] == "flash_attention"]
    assert all("flash_attention_for_cpu" in " ".join(p["kernels"]) for p in flash)
    assert {fit["family"] for fit in fields["kernels"]} >= {"gemm", "decode_attention", "prefill_attention"}
    assert fields["environment"]["torch"]
    assert "cpu" in fields["environment"]["command"]


def test_a_quick_run_takes_less_than_a_minute(quick_run: tuple[Path, str, str, float]) -> None:
    assert quick_run[3] < 60


def test_a_run_writes_nothing_to_stderr_but_its_bar(quick_run: tuple[Path, str, str, float]) -> None:
    assert quick_run[2] == "", "no warnings, and no bar where no one watches"


def test_show_draws_the_file_as_the_run_did(quick_run: tuple[Path, str, str, float]) -> None:
    file, drawn = quick_run[:2]
    code, shown, _ = invoke("calibrate", "--show", str(file))
    assert code == 0
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in drawn.splitlines()]
    for part in ("Memory bandwidth", "Decode attention", "Fitted constants", "held out", "Legend", "GB/s", "TFLOP/s"):
        assert part in shown
    as_json = json.loads(invoke("calibrate", "--show", str(file), "--format", "json")[1])
    assert len(as_json["points"]) == len(yaml.safe_load(file.read_text("utf-8"))["points"])


def test_the_clock_before_the_run_is_called_idle(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    clocks = "environment:\n  sm_clock_mhz: 345\n  max_sm_clock_mhz: 1980\n"
    file.write_text(RUN.replace("environment:\n", clocks), "utf-8")
    assert "idle at 345 of 1980 MHz" in " ".join(invoke("calibrate", "--show", str(file))[1].split())


def test_a_run_shows_its_points_beside_the_datasheet(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN, "utf-8")
    code, shown, error = invoke("calibrate", "--show", str(file))
    assert code == 0, error
    row = next(line for line in shown.splitlines() if line.startswith("flash_attention"))
    assert " ".join(row.split()) == EXPECTED_ROW
    assert "decode attention on cudnn_attention: wrong, error 6, limit 0.01 (1 point)" in shown
    assert "flash_fwd_splitkv_kernel" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "--device: 'gpu' is not a device; accepted: cpu, cuda"),
        (["--dtype", "bf17"], "--dtype: 'bf17' is not a dtype"),
        (["--gpu", "h100-sxn"], "'h100-sxn' is unknown: neither shipped nor a file; nearest known: h100-sxm"),
        (["--device", "cpu", "--gpu", "h100-sxm"], "--gpu: names a GPU's profile, and --device cpu measures none"),
        (["--device", "cpu", "--dtype", "fp32,fp8"], "--dtype fp8: a CPU takes seconds"),
        (["--tp", "2"], "--tp: shares a model's heads"),
        (["--format", "markdown"], "--format: markdown is not offered here"),
        (["--format", "html"], "--format: html is not offered here"),
        (["--model", "lama"], "model 'lama' is unknown"),
        (["--model", "llama-3.1-8b", "--tp", "3"], "--tp 3: does not divide"),
        (["--show", "no-such-file.yaml"], "no-such-file.yaml: cannot be read"),
        (
            ["--show", "no-such-name"],
            "calibration 'no-such-name' is unknown: neither shipped nor a file; none is near; known are",
        ),
    ],
)
def test_bad_options_are_exit_2(arguments: list[str], message: str) -> None:
    code, error = refused("calibrate", *arguments)
    assert code == 2
    assert message in error


def test_an_existing_file_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "there.yaml"
    file.write_text("mine", "utf-8")
    assert refused(*QUICK, "-o", str(file)) == (2, f"planner: {file}: exists already; --force overwrites it\n")


def test_a_folder_that_is_not_there_is_refused_too(tmp_path: Path) -> None:
    code, error = refused(*QUICK, "-o", str(tmp_path / "none" / "run.yaml"))
    assert (code, "no such folder" in error) == (2, True)


def test_a_folder_is_no_file_even_by_force(tmp_path: Path) -> None:
    code, error = refused(*QUICK, "-o", str(tmp_path), "--force")
    assert (code, error) == (2, f"planner: {tmp_path}: is a folder; name a file in it\n")


def test_a_folder_without_permission_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cli_calibrate.os.access", lambda *_: False)
    code, error = refused(*QUICK, "-o", str(tmp_path / "run.yaml"))
    assert (code, "no permission" in error) == (2, True)


def test_a_run_that_cannot_be_saved_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = validate(CalibrationRun, yaml.safe_load(RUN), Origin("a test"))
    with pytest.raises(InputError):
        _save(run, tmp_path / "gone" / "run.yaml", force=False)
    assert yaml.safe_load(capsys.readouterr().out)["points"][0]["median_us"] == 16.0


def test_without_torch_it_is_exit_4(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, error = refused(*QUICK)
    assert code == 4
    assert "torch is not installed" in error


def test_without_scipy_it_is_exit_4_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.cli_calibrate.find_spec", lambda name: None if name == "scipy" else name)
    code, error = refused(*QUICK)
    assert code == 4
    assert "scipy is not installed" in error
    assert "torch" not in error


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.cli_calibrate.find_spec", lambda _: None)
    code, error = refused(*QUICK)
    assert code == 4
    assert "torch and scipy are not installed" in error
    assert "pip install 'llm-serving-planner[calibrate]'" in error


def test_without_a_gpu_it_is_exit_4() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, error = refused("calibrate")
    assert code == 4
    assert "--device cpu" in error


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    file = tmp_path / "cpu.yaml"
    command = [sys.executable, "-m", "planner", "calibrate", "--device", "cpu", "-o", str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_torch(process.pid)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, error) == ("", "planner: interrupted\n")
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_planner_still_loads_is_quiet() -> None:
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'planner.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from planner.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def wait_for_torch(pid: int) -> None:
    """Until the process has loaded torch, and a little longer: then it measures."""
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see when the run has begun")
    end = time.monotonic() + 60
    while "libtorch_cpu" not in maps.read_text("utf-8"):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(4)


def test_a_calibration_fits_a_narrow_terminal(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN, "utf-8")
    shipped = load_calibration("h100-sxm-vllm")
    for calibration in (load_calibration(str(file)), shipped):
        shown = text.plain(render.draw(calibration, 80), 80)
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
    assert "1 point: 1 ok" not in shown
    assert "held out: median" in shown


def test_every_constant_with_an_effect_is_shown_and_counts_have_their_plural(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace("threads: 8", "threads: 1"), "utf-8")
    assert " 1 CPU thread " in invoke("calibrate", "--show", str(file))[1]
    shown = text.plain(render.draw(load_calibration("l40s-vllm"), 160), 400)
    for part in ("norm ", " ns a step", " ns an item", " activation passes", "L2 reach ", "L2 speedup "):
        assert part in shown
    assert " token passes" not in shown, "only MoE has them, and this file borrows MoE"


DECODE_HEADER = "gpu,engine,ver,kernel_source,kv,q_heads,kv_heads,batch,kv_len,lat_us"
BATCHES, LENGTHS = (1, 2, 4, 8, 16, 32), (128, 512, 1024, 2048, 4096, 8192)


def decode_lines(gpu: str = "h100-sxm", kernel: str = "flash", factor: float = 1.0) -> list[str]:
    return [
        f"{gpu},vllm,0.19.0,{kernel},bfloat16,32,8,{batch},{tokens},{factor * (8 + batch * tokens * 4096 / 2.7e6):.3f}"
        for batch in BATCHES
        for tokens in LENGTHS
    ]


def decode_table(folder: Path, lines: list[str]) -> Path:
    table = folder / "decode.csv"
    table.write_text("\n".join([DECODE_HEADER, *lines]) + "\n", "utf-8")
    return table


def test_fit_writes_a_calibration_per_gpu_and_engine(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    table = decode_table(tmp_path, decode_lines())
    code, out, error = invoke("calibrate", "fit", str(table), "-o", str(tmp_path))
    assert code == 0, error
    file = tmp_path / "h100-sxm-vllm.yaml"
    assert f"{file}: " in out
    code, shown, _ = invoke("calibrate", "--show", str(file))
    assert code == 0
    assert "decode attention" in shown
    code, error = refused("calibrate", "fit", str(table), "-o", str(tmp_path))
    assert (code, "exists already" in error) == (2, True)


def test_a_fit_names_the_source_of_its_tables_and_no_other(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    table = decode_table(tmp_path, decode_lines("l40s"))
    file = tmp_path / "l40s-vllm.yaml"
    assert invoke("calibrate", "fit", str(table), "-o", str(tmp_path))[0] == 0
    fields = yaml.safe_load(file.read_text("utf-8"))
    assert fields["source"] == "the tables given: decode.csv"
    assert fields["as_of"] == f"{date.today():%Y-%m-%d}"
    assert not {"licence", "attribution"} & set(fields)
    assert "left_out" not in fields, "no collective was given, so none is left out"
    assert "NVIDIA a" not in file.read_text("utf-8")
    assert "Source\n  the tables given: decode.csv, 20" in invoke("calibrate", "--show", str(file))[1]
    stated = ("--source", "ours", "--licence", "MIT", "--attribution", "by us", "--as-of", "2026-01-02", "--force")
    assert invoke("calibrate", "fit", str(table), "-o", str(tmp_path), *stated)[0] == 0
    fields = yaml.safe_load(file.read_text("utf-8"))
    assert [fields[name] for name in ("source", "licence", "attribution", "as_of")] == [
        "ours", "MIT", "by us", "2026-01-02",
    ]  # fmt: skip


def test_the_fastest_kernel_is_one_with_constants(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    table = decode_table(tmp_path, decode_lines(kernel="slow") + decode_lines(kernel="quick", factor=0.5)[:3])
    assert invoke("calibrate", "fit", str(table), "-o", str(tmp_path))[0] == 0
    found = load_calibration(str(tmp_path / "h100-sxm-vllm.yaml"))
    assert [(entry.kernel, entry.fastest) for entry in found.kernels] == [("slow", True)]
    assert found.find("decode_attention", "bfloat16") is not None
    assert found.left_out == ("decode_attention bfloat16 quick: only 3 points",)


def test_without_common_shapes_the_constants_tell_which_kernel_is_the_fastest(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    lines = decode_lines(kernel="a-slow", factor=3)[::2] + decode_lines(kernel="b-quick")[1::2]
    table = decode_table(tmp_path, lines)
    assert invoke("calibrate", "fit", str(table), "-o", str(tmp_path))[0] == 0
    found = load_calibration(str(tmp_path / "h100-sxm-vllm.yaml"))
    assert {entry.kernel: entry.fastest for entry in found.kernels} == {"a-slow": False, "b-quick": True}


def test_a_poor_fit_says_so(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    lines = [
        f"h100-sxm,vllm,1,flash,bfloat16,32,8,{batch},{tokens},{(1, 5000, 40)[(i + j) % 3]}"
        for i, batch in enumerate(BATCHES)
        for j, tokens in enumerate(LENGTHS)
    ]
    assert invoke("calibrate", "fit", str(decode_table(tmp_path, lines)), "-o", str(tmp_path))[0] == 0
    (entry,) = load_calibration(str(tmp_path / "h100-sxm-vllm.yaml")).kernels
    assert entry.notes is not None
    assert entry.notes.startswith("the form does not describe these points: half are missed by ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DECODE_HEADER, "nothing to fit: no rows, or none within the selection"),
        (f"{DECODE_HEADER}\nh100-sxm,vllm,1,f,bfloat16,32,8,1,16,9", "nothing to fit: no rows, or none within"),
        (f"{DECODE_HEADER}\nh1oo,vllm,1,f,bfloat16,32,8,1,256,9", "h1oo: left out: accelerator 'h1oo' is not shipped"),
        (f"{DECODE_HEADER}\nh100-sxm,vllm,1,f,bfloat16,32,8,1,256,9", "decode_attention bfloat16 f: only 1 point\n"),
        (
            "gpu,engine,ver,kind,op,dt,num_gpus,elements,lat_us\nh100-sxm,nccl,1,nccl,all_reduce,half,8,1024,9",
            "nothing to fit: rows of nccl alone make no calibration",
        ),
    ],
)
def test_tables_with_nothing_to_fit_are_refused(content: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    table = tmp_path / "table.csv"
    table.write_text(content + "\n", "utf-8")
    code, error = refused("calibrate", "fit", str(table), "-o", str(tmp_path))
    assert code == 2
    assert message in error
    assert os.listdir(tmp_path) == ["table.csv"]


def test_the_folder_is_checked_before_the_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="needs scipy")
    monkeypatch.setattr("planner.calibrate.bundle.fit", lambda *_: pytest.fail("fitted before the folder was checked"))
    table = decode_table(tmp_path, decode_lines())
    assert "no such folder" in refused("calibrate", "fit", str(table), "-o", str(tmp_path / "none"))[1]
    (tmp_path / "h100-sxm-vllm.yaml").write_text("mine", "utf-8")
    assert "exists already" in refused("calibrate", "fit", str(table), "-o", str(tmp_path))[1]
    assert invoke("calibrate", "fit", str(table))[0] == 2, "no folder is assumed"


EXPECTED_ROW = "flash_attention bfloat16 32 8 128 1 4,096 16.0 us 1 % 1,050 31 % 4.2 0 % ok"
RUN = """
name: h100-sxm-torch-2.13.0
gpu: h100-sxm
engine: torch
engine_version: 2.13.0+cu130
peaks: datasheet
points_used: 1
holdout_rule: none
selection: all
kernels: []
source: a simulated run
licence: none
attribution: none
as_of: "2026-11-30"
environment:
  measured_at: "2026-11-30T00:00:00Z"
  planner: 0.1.0
  command: device=cuda:0
  device: NVIDIA H100 80GB HBM3
  accelerator: h100-sxm
  l2_bytes: 52428800
  torch: 2.13.0+cu130
  python: 3.11.9
  platform: Linux
  threads: 8
  datasheet_gb_per_s: 3350
  datasheet_tflop_per_s: {bfloat16: 989}
points:
- family: decode_attention
  backend: flash_attention
  shape: {dtype: bfloat16, query_heads: 32, kv_heads: 8, head_dim: 128, batch: 1, kv_tokens: 4096}
  verdict: ok
  median_us: 16.0
  iqr_share: 0.01
  timings: 20
  method: cuda_graph
  moved_bytes: 16800000
  flops: 67108864
  achieved_gb_per_s: 1050
  achieved_tflop_per_s: 4.2
  share_of_datasheet_gb_per_s: 0.313
  share_of_datasheet_tflop_per_s: 0.0042
  error: 0.0021
  error_limit: 0.01
  kernels: [flash_fwd_splitkv_kernel, flash_fwd_splitkv_combine_kernel]
- family: decode_attention
  backend: cudnn_attention
  shape: {dtype: bfloat16, query_heads: 32, kv_heads: 8, head_dim: 128, batch: 1, kv_tokens: 4096}
  verdict: wrong
  error: 6.0
  error_limit: 0.01
  notes: ["error 6, limit 0.01"]
"""
