"""How long an estimate takes, beside the bare start of the libraries it is built on; how fast a simulation is.

    python -m tests.bench [--runs N] [--estimates N] [--traces FOLDER] [--peer PYTHON]

Runs of both commands alternate, so that a busy machine slows both. Exits with 1 over the limits below.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from planner import catalog
from planner.inputs import Scenario
from planner.origin import Origin
from planner.plan import estimate
from tests.bench_simulation import lines
from tests.scenarios import ROOT

BASELINE = """
import typer, pydantic, rich, yaml
import rich.table
class Model(pydantic.BaseModel):
    x: int
Model(x=1)
"""
FLAGS = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat")
GOAL_RATIO, MOST_RATIO = 2.0, 3.0
MOST_MS = 1.0
"""One estimate of a loaded scenario's memory, fleet and cost, in this process; its speed comes on top."""


def load(*, lengths: bool = True) -> Scenario:
    """The scenario that the command line estimates.

    lengths: the workload's, from which its speed follows; False: it has none
    """
    fields = {"model": FLAGS[1], "accelerator": FLAGS[3], "workload": FLAGS[5]}
    none: dict[str, None] = {} if lengths else {"workload.input_tokens": None, "workload.output_tokens": None}
    return catalog.load_scenario(fields, Origin("bench"), none)


def milliseconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = perf_counter()
    action()
    return 1000 * (perf_counter() - start)


def command(bytecode: str, *arguments: str) -> Callable[[], object]:
    """A run of this Python in the checkout, with bytecode kept as an installation keeps it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    whole = [sys.executable, *arguments]
    return lambda: subprocess.run(whole, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def commands(runs: int) -> tuple[float, float]:
    """(baseline, estimate): median wall time of each command [ms], after one run that writes bytecode."""
    with TemporaryDirectory() as bytecode:
        pair = command(bytecode, "-c", BASELINE), command(bytecode, "-m", "planner", "estimate", *FLAGS)
        times = [[milliseconds(action) for action in pair] for _ in range(runs + 1)][1:]
    baseline, whole = zip(*times, strict=True)
    return median(baseline), median(whole)


def in_process(estimates: int) -> tuple[float, float, float]:
    """(memory and cost alone, with speed, loading and all): median in this process [ms]."""
    scenario, plain = load(), load(lengths=False)
    actions = lambda: estimate(plain), lambda: estimate(scenario), lambda: estimate(load())
    times = [[milliseconds(action) for action in actions] for _ in range(estimates + 1)][1:]
    alone, whole, loaded = (median(column) for column in zip(*times, strict=True))
    return alone, whole, loaded


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Time estimates and simulations.")
    parser.add_argument("--runs", type=int, default=15, help="runs of each command")
    parser.add_argument("--estimates", type=int, default=300, help="estimates in this process")
    parser.add_argument("--traces", type=Path, help="folder of the complete traces (default: the samples of the tests)")
    parser.add_argument("--peer", help="a Python in which sched-sim is installed, to be measured beside")
    asked = parser.parse_args(arguments)
    baseline, whole = commands(asked.runs)
    alone, with_speed, loaded = in_process(asked.estimates)
    ratio = whole / baseline
    by_runs, by_estimates = f"ms, median of {asked.runs}", f"ms, median of {asked.estimates}"
    for what, figure, note in (
        ("python -c 'import typer, pydantic, rich, yaml'", baseline, by_runs),
        (f"planner estimate {' '.join(FLAGS[1::2])}", whole, f"{by_runs}, alternating"),
        ("ratio", ratio, f"goal {GOAL_RATIO:g}, limit {MOST_RATIO:g}"),
        ("one estimate of memory, fleet and cost", alone, f"{by_estimates}, limit {MOST_MS:g}"),
        ("one estimate, speed included", with_speed, by_estimates),
        ("one estimate, files read and validated", loaded, by_estimates),
    ):
        print(f"{what:58}{figure:9.3f} {note}")
    for what, speed, note in lines(asked.traces, asked.peer):
        print(f"{what:58}{'-' if speed is None else format(speed, ',.0f'):>9} {note}")
    return 0 if ratio <= MOST_RATIO and alone <= MOST_MS else 1


if __name__ == "__main__":
    sys.exit(main())
