"""How many requests a simulation does in a second of CPU time, beside sched-sim on the same trace.

    python -m tests.bench [--traces FOLDER] [--peer PYTHON]

Of planner everything counts that `planner simulate` does for a trace once scenario and calibration are loaded, but
printing: reading the file, filling tables of step times, the engine, the measuring; the note has it without the first
two. It is measured as its wheel installs it, with the engine compiled, and from the checkout, as Python alone. Of
sched-sim, whose input is Python objects, its simulator alone. Both serve an 8B Llama (planner 3.1, for its context) on
one H100, of which sched-sim has a preset, in steps of at most 8,192 tokens and 1,024 requests, with a prefix cache
where the trace has hash ids.
sched-sim 0.2 finds prefixes by tokens, so a hash id stands for 512 tokens of its own. Measure on an idle machine: a
busy one slows both. Of planner the fastest of RUNS runs counts, since others on a machine only ever slow it; sched-sim,
a hundred times slower, runs once.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from time import process_time

from planner import catalog
from planner.deployment import deploy
from planner.origin import Origin
from planner.simulate.cluster import Cluster
from planner.simulate.engine import Engine
from planner.simulate.hashes import Hashes
from planner.simulate.loads import Listed, Load
from planner.simulate.measures import Limits, Meter
from planner.simulate.setting import Setting, setting_of
from planner.simulate.traces import open_trace
from tests import wheels
from tests.scenarios import ORACLES, ROOT

GOALS = {"azure2023_conv": 100_000, "mooncake_conversation": 20_000}
"""Requests per second of CPU time that planner is to reach on the complete traces."""
SCENARIO = {
    "model": "llama-3.1-8b",
    "accelerator": "h100-sxm",
    "workload": "chat",
    "context_tokens": 131_072,
}
PEER = """
import json, sys, time
from sched_sim.cli import create_scheduler
from sched_sim.core.event_engine import Simulator
from sched_sim.core.request import Request
from sched_sim.hardware.presets import get_hardware_profile
rows, caching = json.load(sys.stdin)
ids = lambda row: [512 * each + i for each in row[3] for i in range(512)][:row[1]]
requests = [
    Request(request_id=str(i), arrived_at=row[0], prompt_tokens=row[1], output_tokens=row[2], prompt_token_ids=ids(row))
    for i, row in enumerate(rows)
]
start = time.process_time()
llama = get_hardware_profile("a100")
names = ("model_name", "parameter_count_billions", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
hardware = get_hardware_profile("h100").model_copy(update={name: getattr(llama, name) for name in names})
scheduler = create_scheduler(
    "chunked", hardware, token_budget=8192, max_batch_size=1024, enable_prefix_caching=caching
)
simulator = Simulator(hardware, scheduler)
simulator.submit_workload(requests)
simulator.run()
print(json.dumps([time.process_time() - start, sum(each.completed_at is not None for each in requests)]))
"""
OURS = """
import dataclasses, json, pathlib, sys
from tests.bench_simulation import ours
print(json.dumps(dataclasses.asdict(ours(pathlib.Path(sys.argv[1])))))
"""
RUNS = 5
PEER_REQUESTS, PEER_LIMIT_S = 1000, 120


@dataclass(frozen=True)
class Speed:
    """What one simulator did."""

    requests: int
    cpu_s: float
    note: str

    @property
    def per_s(self) -> float:
        """Requests per second of CPU time."""
        return self.requests / self.cpu_s


def ours(path: Path) -> Speed:
    """A whole trace, from the file to its quantiles; and its simulator alone, as the peer's is measured."""
    caching = {"engine_options.prefix_caching": bool(open_trace(path).chunk_tokens)}
    deployment = deploy(catalog.load_scenario({}, Origin("bench"), SCENARIO | caching))
    whole_s = alone_s = inf
    for _ in range(RUNS):
        setting = setting_of(deployment)  # its tables are empty
        start = process_time()
        trace = open_trace(path)
        meter = simulated(trace, setting)
        found = f"TTFT p50 {meter.ttft.at(0.5):.3g} s, {meter.preemptions:,} preemptions"
        whole_s = min(whole_s, process_time() - start)
        listed = Listed(list(trace.requests()), trace.chunk_tokens)
        start = process_time()
        simulated(listed, setting)
        alone_s = min(alone_s, process_time() - start)
    alone = meter.submitted / alone_s
    hit = f", hit rate {meter.cached_tokens / meter.input_tokens:.1%}" if trace.chunk_tokens else ""
    return Speed(meter.submitted, whole_s, f"{found}{hit}; {alone:,.0f} with requests in memory and tables filled")


def ours_in(folder: Path, path: Path) -> Speed:
    """The same in a process of its own, with the planner of a folder."""
    return Speed(**json.loads(wheels.run("-c", OURS, str(path.resolve()), folders=(folder, ROOT), timeout=600)))


def simulated(load: Load, setting: Setting) -> Meter:
    """One replica under a load."""
    hashes = Hashes(setting.memory, load.chunk_tokens) if load.chunk_tokens else None
    cluster = Cluster(
        lambda watch: Engine(setting.memory, setting.rules, setting.times, watch, hashes),
        1,
        Meter(Limits()),
        routing="round-robin",
    )
    return cluster.run(load).meter


def peers(path: Path, python: str) -> Speed | str:
    """sched-sim on the first requests of a trace; why not, where it does not run."""
    trace = open_trace(path)
    first = islice(trace.requests(), PEER_REQUESTS)
    rows = [(each.arrival_s, each.input_tokens, each.output_tokens, each.hash_ids) for each in first]
    try:
        run = subprocess.run(
            [python, "-c", PEER], input=json.dumps([rows, bool(trace.chunk_tokens)]), capture_output=True, text=True,
            timeout=PEER_LIMIT_S, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done within {PEER_LIMIT_S} s"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"does not run: {str(getattr(error, 'stderr', None) or error).strip().splitlines()[-1]}"
    cpu_s, done = json.loads(run.stdout)
    return Speed(len(rows), cpu_s, f"the first {len(rows):,} requests, of which {done:,} ended")


def traces(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """(name, file) of both traces: complete ones in a folder, or the samples that the tests ship with."""
    files = sorted((folder or ORACLES / "traces").iterdir())
    for name in GOALS:
        found = next((path for path in files if path.name.startswith(name)), None)
        if found is not None:
            yield name, found


def lines(folder: Path | None, peer: str | None) -> Iterator[tuple[str, float | None, str]]:
    """(what, requests per second of CPU time, note) of every measurement."""
    for name, path in traces(folder):
        goal = f"goal {GOALS[name]:,} on the complete trace"
        for what, source in (("planner", wheels.installed()), ("planner not compiled", ROOT)):
            speed = ours_in(source, path)
            note = f"requests/CPU s, {speed.requests:,} of them, {speed.note}; {goal}"
            yield f"{what}, {path.name}", speed.per_s, note
        other = peers(path, peer) if peer else "--peer PYTHON names one with `pip install sched-sim==0.2.0`"
        if isinstance(other, str):
            yield f"sched-sim, {path.name}", None, other
        else:
            yield f"sched-sim, {path.name}", other.per_s, f"requests/CPU s, {other.note}"
