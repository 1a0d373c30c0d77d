"""`planner search`: exit codes, streams, formats, what is printed of a long result, and every flag."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import cli_search
from planner import search as search_module
from planner.render.search import fleet_text
from planner.saved import read
from planner.search_inputs import load_search
from planner.search_report import SearchResult
from planner.space import Space
from tests.commands import done, refused, run
from tests.scenarios import EXAMPLES, ROOT

SEARCH = ("search", "--model", "llama-3.1-8b", "--workload", "chat", "--gpu", "h100-sxm", "--gpu", "l40s")
HEADS = {
    "text": "llama-3.1-8b for chat\n",
    "markdown": "# ",
    "html": "<!DOCTYPE",
    "yaml": "kind: planner search\n",
    "json": "{",
}
GOLDEN = Path(__file__).parent / "golden"
REJECTING = (*SEARCH, "--gpu", "tpu-v5e", "--tp", "1", "--tp", "3", "--ttft-p95", "0.2")


def result_of(*arguments: str | Path) -> SearchResult:
    return SearchResult.model_validate_json(done(*arguments, "--format", "json"))


# Exit codes and streams


def test_a_commitment_is_of_one_device() -> None:
    commitment = ("--set", "commitment={devices: 2, price: 1}")
    for asked in ((*SEARCH, *commitment), (*SEARCH[:7], *commitment, "--mix")):
        assert refused(*asked).startswith("planner: commitment: its price is of one device: ")
    assert result_of(*SEARCH[:7], *commitment).candidates[0].monthly_usd


def test_no_feasible_choice_is_printed_with_code_3() -> None:
    shown = done(*SEARCH, "--ttft-p95", "0.01", code=3)
    assert "8 choices: none serves the load, 8 rejected" in shown
    assert "8 by ttft_p95, such as h100-sxm 1 device: " in shown
    assert "Cheapest" not in shown
    assert "3 by " not in done(*SEARCH, "--tp", "3", code=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search",), "planner: command line: model: missing; name it there or with --model\n"),
        ((*SEARCH, "--gpu", "h1000"), "planner: accelerator 'h1000' is unknown: neither shipped nor a file; "),
        ((*SEARCH, "--engine", "vllm"), "planner: engine 'vllm' is unknown: neither shipped nor a file; "),
        ((*SEARCH, "--engine", "vllm-0.33", "--engine", "x"), "planner: engine 'x' is unknown: "),
        ((*SEARCH, "--context", "200000"), "planner: context_tokens: 200,000 is over the 131,072 "),
        ((*SEARCH, "--price", "0"), "planner: command line: price.usd_per_hour: Input should be greater than 0, "),
        ((*SEARCH, "--price", "aws/none"), "planner: price 'aws/none' is not listed for h100-sxm; none is near; "),
        ((*SEARCH, "--ttft-p95", "fast"), "planner: command line: workload.objectives.ttft_p95_s: "),
        ((*SEARCH, "--set", "accelerator.memory_mib=9"), "planner: --set accelerator.memory_mib: a search takes it "),
        ((*SEARCH, "--kv-dtype", ""), "planner: command line: kv_dtypes.0: "),
        ((*SEARCH, "--kv-dtype", "int3"), "planner: kv_cache.dtype: vllm-0.33 does not accept 'int3'; accepted: "),
        (("search", "nowhere"), "planner: nowhere: no such file; "),
        (("search", EXAMPLES / "16k.yaml"), "planner: memory.device_gib: is one deployment's figure, "),
    ],
)
def test_bad_input_is_one_line_on_stderr_with_code_2(arguments: tuple[str, ...], message: str) -> None:
    assert refused(*arguments).startswith(message)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--tp", "0"), ("--tp", "4097"), ("--pp", "two"), ("--ep", "-1"), ("--top", "0"), ("--jobs", "0"),
        ("--max-num-seqs", "0"), ("--max-num-batched-tokens", str(2**60)), ("--format", "pdf"),
    ],
)  # fmt: skip
def test_bad_usage_names_the_flag(flag: str, value: str) -> None:
    assert flag in refused(*SEARCH, flag, value)


def test_too_many_choices_are_refused_at_once() -> None:
    many = [part for flag in ("--tp", "--pp", "--dp") for n in range(1, 60) for part in (flag, str(n))]
    start = time.monotonic()
    message = refused(*SEARCH, *many)
    assert message.startswith("planner: 2 --gpu x 59 --tp x 59 --pp x 59 --dp = 410,758 choices, and a search tries ")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("flag", "folder", "name", "was", "now"),
    [
        ("--gpu", "accelerators", "l40s", "hbm_gb_per_s: 864", "hbm_gb_per_s: 900"),
        ("--engine", "engines", "vllm-0.33", 'gpu_memory_utilization: "0.92"', 'gpu_memory_utilization: "0.9"'),
    ],
)
def test_files_that_differ_under_one_name_are_refused(
    tmp_path: Path, flag: str, folder: str, name: str, was: str, now: str
) -> None:
    text = (ROOT / "profiles" / folder / f"{name}.yaml").read_text("utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    done(*SEARCH, flag, name, flag, str(path))
    assert was in text
    path.write_text(text.replace(was, now), "utf-8")
    message = refused(*SEARCH, flag, name, flag, str(path))
    assert message == f"planner: {flag}: two that differ are both named {name}: name one otherwise\n"


def test_an_output_that_must_stay_is_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.search.search", None)
    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    message = refused(*SEARCH, "-o", str(tmp_path / "mine.txt"))
    assert message == f"planner: {tmp_path / 'mine.txt'}: exists already; --force overwrites it\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("send", "sent", "code", "said"),
    [
        (os.kill, signal.SIGINT, 130, "planner: interrupted\n"),
        (os.killpg, signal.SIGINT, 130, "planner: interrupted\n"),  # what a terminal does
        (os.kill, signal.SIGTERM, 143, ""),
    ],
)
def test_a_stopped_search_stops_its_workers_and_says_no_more(
    tmp_path: Path, send: Callable[[int, int], None], sent: signal.Signals, code: int, said: str
) -> None:
    limits = [part for n in range(100, 700) for part in ("--max-num-seqs", str(n))]
    command = [sys.executable, "-m", "planner", *SEARCH, *limits, "--jobs", "2", "-o", str(tmp_path / "r.txt")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(3)
    send(process.pid, sent)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (code, said)
    assert list(tmp_path.iterdir()) == []
    for _ in range(100):
        if not subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True).stdout:
            return
        time.sleep(0.1)
    pytest.fail("a worker is left")


# Results


@pytest.mark.parametrize("form", sorted(HEADS))
def test_formats(form: str, tmp_path: Path) -> None:
    shown = done(*REJECTING, "--format", form)
    assert shown.startswith(HEADS[form])
    assert shown.endswith("\n")
    path = tmp_path / "saved"
    assert done(*REJECTING, "-f", form, "--output", path) == ""
    assert path.read_text("utf-8") == shown
    if form in ("yaml", "json"):
        assert read(path) == result_of(*REJECTING)
        for other in HEADS:
            assert done("report", path, "--format", other) == done(*REJECTING, "--format", other)
        assert done("report", path, "--plot") == done(*REJECTING)
        assert refused("compare", path, path) == f"planner: {path}: cannot be compared: it holds a search\n"


def test_text_and_markdown_draw_the_same_figures() -> None:
    result = result_of(*REJECTING)
    assert result.candidates
    assert {each.limit for each in result.rejected} == {"parallelism", "price", "ttft_p95"}
    for form in ("text", "markdown"):
        shown = done(*REJECTING, "--format", form)
        for candidate in result.candidates:
            assert fleet_text(candidate) in shown
            assert f"${candidate.monthly_usd:,.2f}" in shown
        assert "has no listed price" in shown
        assert shown.count("tp 3 does not divide the model's 32 attention heads") == 1


def test_top_limits_what_is_printed_and_not_what_is_saved() -> None:
    whole, short = done(*SEARCH), done(*SEARCH, "--top", "2")
    assert len(short) < len(whole)
    assert "and 6 more: --top 8 prints all" in short
    assert "Pareto front: " in short
    assert "Pareto front: " not in whole
    assert done(*SEARCH, "--top", "2", "-f", "json") == done(*SEARCH, "-f", "json")


def test_rejected_prints_every_one() -> None:
    shown = done(*REJECTING, "--rejected")
    assert shown == done(*REJECTING, "--all")
    for line in ("h100-sxm TP3: parallelism: ", "l40s TP3: parallelism: ", "tpu-v5e TP3: price: "):
        assert line in shown
    assert done(*REJECTING).count("parallelism") == 1


def test_devices_without_their_own_constants_are_named() -> None:
    shown = done(*SEARCH, "--gpu", "a10", "--gpu", "mi300x", "--set", "workload.objectives.success_share=0.9")
    assert "nobody measured a10: other devices' kernel constants stand in" in shown
    assert "success of 90 %" in shown
    memory_alone = done(*SEARCH, "--gpu", "mi300x", "--tp", "1")
    assert "speed is not predicted, and memory alone sizes the fleet, of mi300x" in memory_alone
    assert "The cheapest with predicted speed" in done(*SEARCH[:7], "--gpu", "mi300x", "--tp", "1")
    assert "1 choice: 1 serves the load, 0 rejected" in done(*SEARCH[:5], "--gpu", "mi300x", "--tp", "1")


def test_brief_leaves_out_the_assumptions() -> None:
    brief, whole = done(*SEARCH, "--brief"), done(*SEARCH)
    assert whole.startswith(brief.rstrip("\n"))
    assert "Assumes" in whole
    assert "Assumes" not in brief


def test_limits_that_make_no_difference_share_a_line() -> None:
    limits = ("--gpu", "l40s", "--tp", "2", "--max-num-seqs", "512", "--max-num-seqs", "1024")
    shown = done(*SEARCH[:5], *limits)
    assert "512, 1,024" in shown
    assert "256 to 1,024" in done(*SEARCH[:5], *limits, "--max-num-seqs", "256")
    assert "2 choices: 2 serve the load" in shown


def test_a_wide_name_is_folded_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    text = (ROOT / "profiles/accelerators/l40s.yaml").read_text("utf-8")
    path.write_text(text.replace("name: l40s", f"name: {'n' * 150}"))
    shown = done(*SEARCH, "--gpu", path, "--price", "1")
    assert shown.count("n" * 30) >= 4


def test_names_are_text_in_every_format(tmp_path: Path) -> None:
    hostile = "[bold]x|y<script> *s* _u_"
    path = tmp_path / "hostile.yaml"
    text = (ROOT / "profiles/accelerators/l40s.yaml").read_text("utf-8")
    path.write_text(text.replace("name: l40s", f"name: {json.dumps(hostile)}"))
    command = (*SEARCH[:5], "--gpu", path, "--price", "1", "--tp", "1", "--tp", "3")
    assert f"2 replicas x TP8 = 16 {hostile}" in done(*command[:-4])
    drawn = done(*command, "--format", "markdown")
    assert "<" not in drawn
    assert "\\[bold]x\\|y" in drawn
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in drawn.splitlines() if line.startswith("|")]
    assert len(set(cells)) == 1


def test_jobs_change_nothing() -> None:
    assert done(*SEARCH, "--jobs", "2") == done(*SEARCH)


@pytest.mark.parametrize(
    ("flag", "values", "field"),
    [
        ("--gpu", ("h200-sxm", "l4"), "accelerators"),
        ("--engine", ("vllm-0.33", "sglang-0.5"), "engines"),
        ("--tp", (2, 16), "tp"),
        ("--pp", (1, 2), "pp"),
        ("--dp", (1, 2), "dp"),
        ("--ep", (1, 4), "ep"),
        ("--kv-dtype", ("auto", "fp8"), "kv_dtypes"),
        ("--max-num-seqs", (64, 128), "max_num_seqs"),
        ("--max-num-batched-tokens", (2048, 4096), "max_num_batched_tokens"),
    ],
)
def test_a_repeated_flag_is_tried_with_each_value(flag: str, values: tuple[str | int, ...], field: str) -> None:
    base = SEARCH[:5] if flag == "--gpu" else (*SEARCH[:5], "--gpu", "h200-sxm")
    small = () if flag == "--tp" else ("--tp", "2")
    flags = [str(part) for value in values for part in (flag, value)]
    result = json.loads(run(*base, *small, *flags, "--format", "json").stdout)
    assert result["space"][field] == list(values)
    assert result["tried"] == 2


@pytest.mark.parametrize(
    ("flag", "value", "path"),
    [
        ("--context", "4096", "context_tokens"),
        ("--concurrency", "7", "workload.concurrency"),
        ("--arrivals", "0.5", "workload.arrivals_per_s"),
        ("--ttft-p95", "2.5", "workload.objectives.ttft_p95_s"),
        ("--itl-p95", "0.5", "workload.objectives.itl_p95_s"),
        ("--block-tokens", "32", "kv_cache.block_tokens"),
        ("--gpu-memory-utilization", "0.875", "engine_options.gpu_memory_utilization"),
        ("--dtype", "float16", "engine_options.dtype"),
        ("--quantization", "fp8", "engine_options.quantization"),
        ("--calibration", "h100-sxm-vllm", "calibration.name"),
        ("--set", "spares.fraction=0.125", "spares.fraction"),
    ],
)
def test_a_flag_holds_for_every_choice(monkeypatch: pytest.MonkeyPatch, flag: str, value: str, path: str) -> None:
    seen = []
    searching = search_module.search

    def spy(scenario: object, space: Space, **options: object) -> SearchResult:
        seen.append(scenario)
        return searching(scenario, space, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(search_module, "search", spy)
    run(*SEARCH, "--tp", "1", flag, value)
    found = seen[0]
    for name in path.split("."):
        found = getattr(found, name)
    assert str(found) == value.rpartition("=")[2]


def test_every_value_of_the_space_has_a_flag() -> None:
    options = set(cli_search.search.__annotations__)
    renamed = {"offers": "gpu", "engines": "engine", "kv_dtypes": "kv_dtype"}
    assert {renamed.get(name, name) for name in Space.model_fields} <= options


def test_a_saved_search_of_thousands_is_read_back(tmp_path: Path) -> None:
    scenario, space = load_search(None, {"model": "llama-3.1-8b", "workload": "chat"}, {"accelerators": ["l4"]})
    result = search_module.search(scenario, space)
    many = result.model_copy(update={"candidates": result.candidates * 2000})
    path = tmp_path / "s.json"
    path.write_text(many.model_dump_json(), "utf-8")
    assert read(path) == many


def snippet(document: str) -> str:
    """The first whole Python program that a document shows."""
    (first, *_) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    return str(first)


@pytest.mark.parametrize(
    ("document", "printed", "needs"),
    [
        ("README.md", "accelerator='h200-sxm'", "joblib"),
        ("CONTRIBUTING.md", " candidates, the cheapest on ", "distributed"),
    ],
)
def test_the_programs_in_the_documents_run(document: str, printed: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    program = tmp_path / "program.py"
    program.write_text(snippet(document), "utf-8")
    result = subprocess.run([sys.executable, program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert printed in result.stdout


def test_text_is_golden(request: pytest.FixtureRequest) -> None:
    shown = done(*REJECTING, "--kv-dtype", "auto", "--kv-dtype", "fp8", "--top", "3")
    path = GOLDEN / "search.txt"
    if request.config.getoption("--refresh-golden"):
        path.write_text(shown, "utf-8")
    assert shown == path.read_text("utf-8")
