"""`planner simulate`: exit codes, streams, formats, what it refuses, and that its report can be kept and compared."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.report import Comparison, Report
from planner.saved import read
from tests.commands import done, refused
from tests.scenarios import ORACLES, ROOT

SIMULATE = ("simulate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "--price", "2")
SHORT = (*SIMULATE, "--arrivals", "5", "--requests", "200")
AZURE = ORACLES / "traces" / "azure2023_conv_head.csv"


def report_of(*arguments: str | Path, code: int = 0) -> Report:
    return Report.model_validate_json(done(*arguments, "--format", "json", code=code))


def test_the_text_says_what_was_seen_and_what_follows() -> None:
    text = done(*SHORT)
    for said in (
        "simulated\n",
        "TTFT, p99",
        "TPOT, p50",
        "gap between tokens, p95",
        "whole request, p90",
        "Simulation\n",
        "The formulas and the simulation\n",
        "200 requests of chat: Poisson arrivals at 5 per s",
        "percentiles: exact",
    ):
        assert said in text
    markdown = done(*SHORT, "--format", "markdown")
    assert "## Simulation" in markdown
    assert "| preemptions | none | 0 | holds |" in markdown


def test_a_saved_report_is_drawn_the_same_and_compared(tmp_path: Path) -> None:
    for rate, name in (("5", "slow"), ("20", "fast")):
        done(*SIMULATE, "--arrivals", rate, "--requests", "200", "-f", "yaml", "-o", tmp_path / f"{name}.yaml")
    found = read(tmp_path / "slow.yaml")
    assert isinstance(found, Report)
    assert found == report_of(*SHORT)
    assert done("report", tmp_path / "slow.yaml") == done(*SHORT)
    changes = done("compare", tmp_path / "slow.yaml", tmp_path / "fast.yaml")
    assert "TTFT, p95" in changes
    assert "requests/s, offered" in changes


def test_the_same_command_prints_the_same_bytes() -> None:
    assert done(*SHORT, "--seed", "3", "--format", "json") == done(*SHORT, "--seed", "3", "--format", "json")
    assert done(*SHORT, "--seed", "3") != done(*SHORT, "--seed", "4")


def test_exit_codes() -> None:
    over = (*SIMULATE, "--arrivals", "90", "--requests", "1500", "--fleet", "1")
    report = report_of(*over, code=3)
    assert report.simulation is not None
    assert report.simulation.saturated
    impossible = report_of(*SHORT, "--ttft-p95", "0.0001", code=3)
    assert impossible.simulation is None
    assert impossible.needs


def test_several_fleets_and_rates_are_compared() -> None:
    found = done(*SHORT, "--fleet", "1", "--fleet", "2", "--rate", "5", "--rate", "10", "-f", "json", "--jobs", "2")
    comparison = Comparison.model_validate_json(found)
    simulations = [report.simulation for report in comparison.reports]
    assert [each.replicas for each in simulations if each] == [1, 2, 1, 2]
    offered = [each.offered_per_s for each in simulations if each]
    assert offered[0] == offered[1]
    assert offered[2] == pytest.approx(2 * float(offered[0] or 0), rel=1e-3)


def test_a_trace_is_replayed_packed_or_not(tmp_path: Path) -> None:
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(AZURE.read_bytes()))
    plain, from_packed = (report_of(*SIMULATE, "--trace", path, "--fleet", "1").simulation for path in (AZURE, packed))
    assert plain is not None
    assert from_packed is not None
    assert plain.completed == 2000
    assert plain.ttft_s == from_packed.ttft_s
    faster = report_of(*SIMULATE, "--trace", AZURE, "--fleet", "1", "--speed", "2").simulation
    assert faster is not None
    assert faster.offered_per_s == pytest.approx(2 * float(plain.offered_per_s or 0), rel=1e-4)


def test_a_plot_is_drawn_after_the_text() -> None:
    plotted = done(*SHORT, "--plot")
    assert plotted.startswith(done(*SHORT))
    assert "% of KV cache in use" in plotted
    assert "running" in plotted.rpartition("Legend")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fleet", "0"), "--fleet: '0' is not accepted; from-estimate or a number of replicas is"),
        (("--fleet", "many"), "--fleet: 'many' is not accepted"),
        (("--fleet", "99999"), "fleet: 99,999 engines are more than the 4,096"),
        (("--rate", "nan"), "--rate: 'nan' is not accepted; a number from"),
        (("--rate", "-1"), "--rate: '-1' is not accepted"),
        (("--rate", "1e400"), "--rate: '1e400' is not accepted"),
        (("--timeout", "0"), "--timeout: '0' is not accepted"),
        (("--think", "x"), "--think: 'x' is not accepted"),
        (("--variation", "2"), "--variation: needs --arrival-law gamma"),
        (("--speed", "2"), "--speed: needs a --trace"),
        (("--failures",), "--failures: spares.failures is missing"),
        (("--trace", "no-such.csv"), "no-such.csv: "),
        (("--trace", "."), ".: "),
        (("--trace", ROOT / "README.md"), "README.md:1: "),
        (("--set", "parallelism.pp=2"), "parallelism.pp: a simulation has no pipeline stages"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: tuple[str | Path, ...], said: str) -> None:
    assert said in refused(*SHORT, *arguments)


def test_bad_lines_are_reported_or_left_out_by_number(tmp_path: Path) -> None:
    lines = AZURE.read_text().splitlines()[:40]
    lines[5] = "2023-11-16 18:15:50.0000000,many,3"
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines))
    assert f"{path}:6: " in refused(*SIMULATE, "--trace", path)
    text = done(*SIMULATE, "--trace", path, "--skip-bad", "--fleet", "1")
    assert "bad lines, left out: 1 (6)" in " ".join(text.split())


def test_an_existing_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "kept.yaml"
    path.write_text("mine")
    assert "kept.yaml" in refused(*SHORT, "-o", path, "-f", "yaml")
    assert path.read_text() == "mine"


def test_an_interrupt_ends_it_cleanly() -> None:
    command = [sys.executable, "-m", "planner", *SIMULATE, "--arrivals", "5", "--requests", "100000000", "--fleet", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}, text=True)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "planner: interrupted\n"


def test_the_report_is_json_that_any_reader_takes() -> None:
    fields = json.loads(done(*SHORT, "--format", "json"))
    assert fields["simulation"]["series"][0]["time_s"] == 0
