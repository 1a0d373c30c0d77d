"""Shipped calibrations against measured kernels that no fit has seen, and what every shipped file must hold."""

import json
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.calibrate import score
from planner.calibrate.bundle import Provenance, fit_tables, write_calibrations
from planner.calibrate.fit import held_out
from planner.calibrate.points import GemmPoint
from planner.calibrate.score import BOUNDS, score_tables
from planner.calibrate.shipped import calibration_names, calibration_yaml
from planner.calibrate.tables import read_table
from planner.calibration import Calibration, KernelConstants
from planner.calibration_run import CalibrationRun
from planner.catalog import load_calibration
from planner.cli import app
from planner.documents import load_mapping
from planner.errors import InputError
from tests.scenarios import ROOT
from tests.test_cli_calibrate import RUN

KERNELS = ROOT / "tests/oracles/kernels"
TABLES = sorted(KERNELS.glob("*.csv.gz"))
NINE = {
    "a100-sxm-80gb",
    "b200-sxm",
    "b300-sxm",
    "gb200",
    "gb300",
    "h100-sxm",
    "h200-sxm",
    "l40s",
    "rtx-pro-6000-server",
}
SHIPPED_MEDIANS = {
    "decode_attention": (6.0, 18.0),
    "prefill_attention": (4.5, 14.0),
    "gemm": (6.5, 20.0),
    "moe": (12.0, 36.0),
    "collective": (6.5, 20.0),
}
"""Held-out errors [%] of the shipped constants on this sample: median over keys of median and 90th percentile."""


PROVENANCE = Provenance("a sample", date(2026, 11, 30))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["validate", "kernels", *arguments])
    return result.exit_code, result.output


def test_the_sample_is_held_out_and_errors_stay_within_bounds() -> None:
    assert all(held_out(row.point) for path in TABLES for row in read_table(path))
    scores = score_tables(TABLES)
    assert {family.family for family in scores.families} == set(BOUNDS)
    for family in scores.families:
        median, p90 = SHIPPED_MEDIANS[family.family]
        assert (family.held_out_median_percent or 99) <= median <= BOUNDS[family.family][0]
        assert (family.held_out_p90_percent or 99) <= p90 <= BOUNDS[family.family][1]
        assert abs(family.bias_percent) < 4
    assert not scores.exceeded
    assert all("PCIe" in " ".join(load_calibration("l40s-sglang").left_out) for _ in scores.unscored)
    assert {note.split(":")[0] for note in scores.unscored} == {
        "collective of l40s sglang",
        "collective of rtx-pro-6000-server trtllm",
    }


def test_the_l2_term_is_what_l40s_and_rtx_pro_need() -> None:
    """Without it their small cases would read far above memory speed."""
    decode = [path for path in TABLES if "decode" in path.name]
    for gpu in ("l40s", "rtx-pro-6000-server"):
        groups = [group for group in score_tables(decode).groups if group.gpu == gpu]
        assert all((group.held_out_p90_percent or 99) < 30 for group in groups)


@pytest.mark.parametrize("name", calibration_names())
def test_every_shipped_calibration_is_sensible(name: str) -> None:
    found = load_calibration(name)
    assert (found.name, f"{found.gpu}-{found.engine}") == (name, name)
    assert "aiconfigurator-core 0.12.0" in found.source
    assert found.licence == "Apache-2.0"
    assert {"decode_attention", "prefill_attention"} <= {entry.family for entry in found.kernels}
    for entry in found.kernels:
        assert entry.residual.points >= 4
        assert entry.version
        if isinstance(entry.constants, KernelConstants):
            assert entry.constants.floor_us > 0
            assert entry.constants.memory_efficiency <= 1.05
            assert entry.constants.compute_efficiency <= 1.05
    own = {entry.family for entry in found.kernels}
    borrowed = {entry.family for entry in found.borrowed}
    assert borrowed & own == set()
    assert {"gemm", "moe", "mla_decode"} <= own | borrowed
    for loan in found.borrowed:
        assert loan.borrowed_family in {kernel.family for kernel in load_calibration(loan.calibration).kernels}
    keys = {(entry.family, entry.key) for entry in found.kernels}
    assert all(sum(e.fastest for e in found.kernels if (e.family, e.key) == key) <= 1 for key in keys)
    assert all(found.find(*key) is not None for key in keys)


def test_every_gpu_and_engine_of_the_tables_has_one() -> None:
    assert set(calibration_names()) == {f"{gpu}-{engine}" for gpu in NINE for engine in ("vllm", "sglang", "trtllm")}
    assert "NVIDIA aiconfigurator-core 0.12.0" in (ROOT / "NOTICE").read_text("utf-8")


def test_validate_kernels_prints_each_group_and_family() -> None:
    code, text = run(*map(str, TABLES))
    assert code == 0
    assert "moe                every GPU" in text
    assert "not scored: collective of l40s sglang" in text
    code, text = run(*map(str, TABLES), "--format", "json")
    data = json.loads(text)
    assert code == 0
    assert {"family", "gpu", "engine", "points", "median_percent", "p90_percent", "bias_percent"} <= set(
        data["groups"][0]
    )
    assert data["keys"][0]["held_out"]["points"] > 0
    assert run(str(TABLES[0]), "--format", "yaml")[0] == 2


def test_another_gpus_constants_are_an_extrapolation_and_may_exceed_the_bounds() -> None:
    gemm = str(KERNELS / "kernel_gemm.csv.gz")
    code, text = run(gemm, "--calibration", "h100-sxm-vllm")
    assert "extrapolated from another GPU's constants" in text
    assert "calibration h100-sxm-vllm has no constants for nvfp4" in text
    assert code == 3
    assert "exceed 8/28 %" in text
    code, text = run(gemm, "--calibration", "h100-sxm-vlm")
    assert code == 2
    assert "h100-sxm-vllm" in text
    code, text = run(gemm, "--calibration", str(ROOT / "profiles/calibrations/h100-sxm-vllm.yaml"))
    assert code == 3


def test_tables_fit_write_and_load_again(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    seen: list[tuple[int, int]] = []
    paths = [path for path in TABLES if "moe" not in path.name]
    calibrations, notes = fit_tables(paths, PROVENANCE, lambda *at: seen.append(at))
    assert seen[-1][0] + 1 == seen[-1][1] == len(calibrations) == 4
    assert any("over PCIe they vary tenfold" in note for note in notes)
    written = write_calibrations(calibrations, tmp_path, overwrite=False)
    assert [load_calibration(str(path)) for path in written] == calibrations
    with pytest.raises(InputError, match="exists already; --force overwrites it"):
        write_calibrations(calibrations, tmp_path, overwrite=False)
    assert write_calibrations(calibrations, tmp_path, overwrite=True) == written
    with pytest.raises(InputError, match="no such folder"):
        write_calibrations(calibrations, tmp_path / "none", overwrite=False)


def test_a_family_is_borrowed_from_the_most_alike_gpu() -> None:
    lenders = {
        (name, entry.family): entry.calibration
        for name in calibration_names()
        for entry in load_calibration(name).borrowed
    }
    assert lenders["gb300-vllm", "moe"] == "b200-sxm-vllm"
    assert lenders["gb300-vllm", "gemm"] in ("b200-sxm-vllm", "b300-sxm-vllm", "gb200-vllm")
    assert lenders["l40s-vllm", "moe"] == "h100-sxm-vllm"
    assert lenders["rtx-pro-6000-server-vllm", "moe"] == "b200-sxm-vllm"
    assert ("h100-sxm-vllm", "moe") not in lenders


def test_what_is_written_is_read_by_planners_own_reader(tmp_path: Path) -> None:
    shipped = load_calibration("h100-sxm-vllm")
    path = tmp_path / "copy.yaml"
    path.write_text(calibration_yaml(shipped), "utf-8")
    assert Calibration.model_validate(load_mapping(path)) == shipped
    path.write_text(calibration_yaml(shipped).replace("floor_us: ", "floor_us: -"), "utf-8")
    with pytest.raises(InputError, match="floor_us"):
        load_calibration(str(path))


def test_scores_fit_a_narrow_terminal() -> None:
    scores = score_tables(TABLES)
    table = [line for line in score.lines(scores, 80) if "%" in line or line.startswith("family")]
    assert len(table) == 1 + len(scores.groups) + len(scores.families)
    assert max(map(len, table)) <= 80
    assert max(len(line) for line in score.lines(scores) if "%" in line) == score.WIDE


GEMM_HEADER = "gpu,engine,ver,gemm_dtype,n,k,m,lat_us"


def test_tables_that_test_nothing_do_not_pass(tmp_path: Path) -> None:
    table = tmp_path / "gemm.csv"
    seen = next(m for m in range(1, 99) if not held_out(GemmPoint("bfloat16", 1024, 1024, m, 1.0)))
    table.write_text(f"{GEMM_HEADER}\nh100-sxm,vllm,1,bfloat16,1024,1024,{seen},9.5\n", "utf-8")
    code, text = run(str(table))
    assert code == 3
    assert text.splitlines()[-1] == "gemm: none of 1 point was held out of the fits"
    table.write_text(f"{GEMM_HEADER}\n", "utf-8")
    assert run(str(table)) == (3, f"{table}: nothing scored: no rows under the header\n")
    table.write_text(
        "gpu,engine,ver,kv,q_heads,kv_heads,batch,kv_len,lat_us\nh100-sxm,vllm,1,bfloat16,32,8,1,16,9", "utf-8"
    )
    code, text = run(str(table))
    assert code == 3
    assert text.startswith(f"{table}: nothing scored: none of 1 row is within the selection (attention over")
    assert text.count("\n") == 1
    assert "selection" in json.loads(run(str(table), "--format", "json")[1])["exceeded"][0]


def test_a_run_of_this_machine_can_be_held_against_tables(tmp_path: Path) -> None:
    entry = load_calibration("h100-sxm-vllm").find("gemm", "bfloat16")
    assert entry is not None
    kernels = json.dumps([entry.model_dump(mode="json")])
    file = tmp_path / "own"
    file.write_text(RUN.replace("kernels: []", f"kernels: {kernels}"), "utf-8")
    assert isinstance(load_calibration(str(file)), CalibrationRun)
    code, text = run(str(KERNELS / "kernel_gemm.csv.gz"), "--calibration", str(file))
    assert code in (0, 3)
    assert "gemm               h100-sxm" in text
    assert "calibration h100-sxm-torch-2.13.0 has no constants for nvfp4" in text


def test_names_in_a_table_open_no_files_and_unknown_dtypes_are_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("own.yaml", "own.yaml-vllm", "own-x.yaml"):
        (tmp_path / name).write_text("not: ours\n")
    rows = ("own.yaml,vllm,1,bfloat16", "own,x.yaml,1,bfloat16", "h100-sxm,vllm,1,fp2", "h100-sxm,vllm,1,sq")
    lines = [f"{row},1024,1024,8,9.5" for row in rows]
    (tmp_path / "gemm.csv").write_text("\n".join(["gpu,engine,ver,gemm_dtype,n,k,m,lat_us", *lines]) + "\n")
    code, text = run("gemm.csv")
    assert code == 3
    assert "calibration 'own.yaml-vllm' is not shipped" in text
    assert "calibration 'own-x.yaml' is not shipped" in text
    assert "calibration h100-sxm-vllm has no constants for fp2" in text
    (tmp_path / "gemm.csv").write_text("\n".join(["gpu,engine,ver,gemm_dtype,n,k,m,lat_us", lines[0], "bad"]))
    code, text = run("gemm.csv")
    assert (code, text.strip()) == (2, "planner: gemm.csv:3: 1 values where the header has 8")
