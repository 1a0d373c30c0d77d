"""The command: help, exit codes, what goes to stdout and stderr, files written whole, and every flag."""

import json
import os
import re
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import catalog, cli, cli_validate, plan
from planner.documents import load_mapping
from planner.inputs import Scenario
from planner.report import Comparison, Report
from planner.saved import read
from tests.commands import done, refused, run
from tests.scenarios import EXAMPLES, ROOT

COMMANDS = ("estimate", "compare", "simulate", "search", "check", "report", "import", "schema", "catalog")
VALIDATE = ("memory", "logs", "kernels", "serving", "throughput", "replay")
ESTIMATE = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat")
TOO_SMALL = ("estimate", "--model", "llama-3.1-70b", "--gpu", "l4", "--workload", "chat")
EXAMPLE = {
    command.name or getattr(command.callback, "__name__", ""): (command.epilog or "").rpartition("Example: ")[2]
    for command in (*cli.app.registered_commands, *cli_validate.validate_app.registered_commands)
}
HEADS = {
    "text": "llama-3.1-8b on h100-sxm",
    "markdown": "#",
    "html": "<!DOCTYPE",
    "yaml": "kind: planner report",
    "json": "{",
}


def help_of(*command: str) -> str:
    return re.sub(r"\s+", " ", done(*command, "--help"))


# Help


def test_every_command_is_listed_and_tested() -> None:
    assert EXAMPLE.keys() == {*COMMANDS, *VALIDATE}
    assert all(name in help_of() for name in (*COMMANDS, "validate", "calibrate"))
    assert all(name in help_of("validate") for name in VALIDATE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_in_the_help_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "".join(f"Example: {EXAMPLE[command]}".split()) in "".join(done(command, "--help").split())
    arguments = shlex.split(EXAMPLE[command].split(" > ")[0])
    assert arguments[:2] == ["planner", command]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "saved.yaml").write_text(done(*ESTIMATE, "--format", "yaml"))
    (tmp_path / "my-checkpoint").mkdir()
    config = load_mapping(catalog.bundled() / "model_configs/llama-3.1-8b.yaml")["config"]
    (tmp_path / "my-checkpoint" / "config.json").write_text(json.dumps(config))
    done(*arguments[1:])


def test_version_and_a_bare_command() -> None:
    assert re.fullmatch(r"planner \d+\.\d+\.\d+\n", done("--version"))
    assert "Usage: " in run().output


# Exit codes and streams


def test_a_plan_that_does_not_fit_is_printed_with_code_3() -> None:
    assert "Binds: device_memory" in done(*TOO_SMALL, "--price", "1", code=3)
    assert "does not fit" in done(*TOO_SMALL, "--price", "1", "--format", "markdown", code=3)
    stranded = json.loads(done(*ESTIMATE, "--tp", "2", "--devices", "1", "--format", "json", code=3))
    assert stranded["fits"]
    assert stranded["carry"]["active_replicas"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("estimate",), "planner: command line: model: missing; name it there or with --model\n"),
        ((*ESTIMATE, "--context", "200000"), "planner: context_tokens: 200,000 is over the 131,072 "),
        ((*ESTIMATE, "--tp", "3"), "planner: parallelism: tp 3 "),
        ((*ESTIMATE, "--tp", "5000"), "planner: command line: parallelism.tp: Input should be less than or equal "),
        ((*ESTIMATE, "--price", "nan"), "planner: command line: price.usd_per_hour: a finite number is needed, "),
        ((*ESTIMATE, "--price", "0"), "planner: command line: price.usd_per_hour: Input should be greater than 0, "),
        ((*ESTIMATE, "--price", "aws/none"), "planner: price 'aws/none' is not listed for h100-sxm; "),
        ((*ESTIMATE, "--dtype", "int3"), "planner: command line: engine_options.dtype: Input should be "),
        ((*ESTIMATE, "--kv-dtype", "int3"), "planner: kv_cache.dtype: vllm-0.33 does not accept 'int3'; accepted: "),
        ((*ESTIMATE, "--quantization", "x"), "planner: --quantization: 'x' cannot be applied while loading; "),
        ((*ESTIMATE, "--set", "a.b"), "planner: --set a.b: path=value is needed, such as workload.concurrency=90\n"),
        ((*ESTIMATE, "--set", "a=[1"), "planner: --set a:2: is not YAML: "),
        (("estimate", "nowhere"), "planner: nowhere: no such file; a scenario (planner schema scenario) or a saved "),
        (("schema", "nonsense"), "planner: 'nonsense' has no schema; accepted: accelerator, "),
        (("catalog", "models", "--gpu", "l4"), "planner: --gpu: models are not listed by accelerator; prices are"),
        (("catalog", "prices", "--gpu", "l5"), "planner: --gpu l5: no price of it is listed; nearest known: l4"),
        ((*ESTIMATE, "--priced-on", "soon"), "planner: command line: priced_on: "),
        (("catalog", "nonsense"), "planner: 'nonsense' is not a kind of input; accepted: models, "),
        (("report", EXAMPLES / "16k.yaml"), f"planner: {EXAMPLES / '16k.yaml'}:1: kind: is not a saved report; "),
        (("compare", EXAMPLES / "16k.yaml", "none.yaml"), "planner: none.yaml: cannot be read: No such file "),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_on_stderr_with_code_2(arguments: tuple[str, ...], message: str) -> None:
    assert refused(*arguments).startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",), (*ESTIMATE, "--nonsense"), (*ESTIMATE, "--tp", "two"), (*ESTIMATE, "--tp", "0"),
        (*ESTIMATE, "--context", "0"), (*ESTIMATE, "--devices", "-1"), (*ESTIMATE, "--format", "pdf"), ("compare", "a"),
    ],
)  # fmt: skip
def test_bad_usage_is_on_stderr_with_code_2(arguments: tuple[str, ...]) -> None:
    assert refused(*arguments)


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "plan_demand", interrupt)
    result = run(*ESTIMATE)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "planner: interrupted\n")


def piped(stdout: int, **environment: str) -> tuple[int, str]:
    """(exit code, stderr) of an estimate that writes to this file descriptor."""
    result = subprocess.run(
        [sys.executable, "-m", "planner", *ESTIMATE],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )
    return result.returncode, result.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert piped(writing) == (0, "")
    finally:
        os.close(writing)


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        code, errors = piped(full.fileno())
    assert (code, errors) == (2, "planner: standard output: cannot be written: No space left on device\n")


def test_the_locale_does_not_change_what_is_printed(tmp_path: Path) -> None:
    found = []
    for encoding in ("utf-8", "ascii", "latin-1"):
        with (tmp_path / encoding).open("wb") as file:
            assert piped(file.fileno(), PYTHONIOENCODING=encoding) == (0, "")
        found.append((tmp_path / encoding).read_text("utf-8"))
    assert found[0] == found[1] == found[2] == done(*ESTIMATE)
    assert not found[0].isascii()


# Results


@pytest.mark.parametrize("form", sorted(HEADS))
def test_formats(form: str, tmp_path: Path) -> None:
    shown = done(*ESTIMATE, "--format", form)
    assert shown.startswith(HEADS[form])
    assert shown.endswith("\n")
    path = tmp_path / "saved"
    assert done(*ESTIMATE, "-f", form, "--output", path) == ""
    assert path.read_text("utf-8") == shown
    if form in ("yaml", "json"):
        report = read(path)
        assert isinstance(report, Report)
        for other in HEADS:
            assert done("report", path, "--format", other) == done(*ESTIMATE, "--format", other)


def test_brief_leaves_out_the_arithmetic() -> None:
    brief, full = done(*ESTIMATE, "--brief"), done(*ESTIMATE)
    assert full.startswith(brief.rstrip("\n"))
    assert "Arithmetic" in full
    assert "Arithmetic" not in brief


def test_contexts_are_compared(tmp_path: Path) -> None:
    contexts = [argument for tokens in (4096, 8192, 16384) for argument in ("--context", str(tokens))]
    done(*ESTIMATE, *contexts, "--format", "yaml", "-o", tmp_path / "c.yaml")
    comparison = read(tmp_path / "c.yaml")
    assert isinstance(comparison, Comparison)
    assert [report.scenario.context_tokens for report in comparison.reports] == [4096, 8192, 16384]
    for report in comparison.reports:
        alone = Report.model_validate_json(
            done(*ESTIMATE, "--context", str(report.scenario.context_tokens), "--format", "json")
        )
        assert alone == report
    assert "holds 3 reports; compare takes one from each file" in refused(
        "compare", tmp_path / "c.yaml", EXAMPLES / "16k.yaml"
    )
    assert run(*TOO_SMALL, "--price", "1", *contexts).exit_code == 3


def test_compare_takes_scenarios_and_saved_reports(tmp_path: Path) -> None:
    for name in ("16k", "32k"):
        done("estimate", EXAMPLES / f"{name}.yaml", "--format", "json", "-o", tmp_path / f"{name}.json")
    scenarios = done("compare", EXAMPLES / "16k.yaml", EXAMPLES / "32k.yaml")
    assert done("compare", tmp_path / "16k.json", EXAMPLES / "32k.yaml") == scenarios
    assert done("compare", tmp_path / "16k.json", tmp_path / "32k.json") == scenarios


def test_devices_says_what_they_carry() -> None:
    carry = json.loads(done(*ESTIMATE, "--devices", "7", "--tp", "2", "--format", "json"))["carry"]
    assert (carry["devices"], carry["idle_devices"], carry["active_replicas"], carry["spare_replicas"]) == (7, 1, 2, 1)
    assert json.loads(done(*ESTIMATE, "--format", "json"))["carry"] is None
    assert json.loads(done(*ESTIMATE, "--devices", str(10**15), "--format", "json"))["carry"]["devices"] == 10**15


@pytest.mark.parametrize(
    ("flag", "value", "path"),
    [
        ("--model", "qwen3-4b", "model.name"),
        ("--gpu", "l4", "accelerator.name"),
        ("--workload", "rag", "workload.name"),
        ("--engine", "vllm-0.19", "engine.name"),
        ("--price", "2.125", "price.usd_per_hour"),
        ("--price", "aws/p5.48xlarge/reserved_3y", "price.term"),
        ("--priced-on", "2026-03-04", "priced_on"),
        ("--concurrency", "77", "workload.concurrency"),
        ("--tp", "2", "parallelism.tp"),
        ("--pp", "3", "parallelism.pp"),
        ("--dp", "4", "parallelism.dp"),
        ("--ep", "5", "parallelism.ep"),
        ("--kv-dtype", "fp8", "kv_cache.dtype"),
        ("--block-tokens", "32", "kv_cache.block_tokens"),
        ("--gpu-memory-utilization", "0.875", "engine_options.gpu_memory_utilization"),
        ("--max-num-batched-tokens", "4096", "engine_options.max_num_batched_tokens"),
        ("--max-num-seqs", "99", "engine_options.max_num_seqs"),
        ("--dtype", "float16", "engine_options.dtype"),
        ("--quantization", "fp8", "engine_options.quantization"),
        ("--kv-cache-bytes", "123456789", "engine_options.kv_cache_bytes"),
        ("--context", "4096", "context_tokens"),
        ("--set", "spares.fraction=0.125", "spares.fraction"),
        ("--set", "workload.requests_per_month=12", "workload.requests_per_month"),
        ("--set", "hours_per_month='700'", "hours_per_month"),
        ("--set", "title=a=b", "title"),
    ],
)
def test_a_flag_lands_on_its_field(monkeypatch: pytest.MonkeyPatch, flag: str, value: str, path: str) -> None:
    seen: list[Scenario] = []
    estimate = plan.estimate

    def spy(scenario: Scenario, devices: int | None) -> Report:
        seen.append(scenario)
        return estimate(scenario, devices)

    monkeypatch.setattr(cli, "plan_demand", spy)
    run(*ESTIMATE, flag, value)
    run(*ESTIMATE)
    changed, plain = (  # --gpu again adds one; the day is no part of what is written
        leaves(scenario.model_dump(mode="json") | {"priced_on": str(scenario.priced_on)}) for scenario in seen[-2:]
    )
    expected = value.rpartition("/")[2] if path == "price.term" else value.removeprefix(f"{path}=").strip("'")
    assert str(changed[path]) == expected
    part = path.split(".")[0]
    by_name = flag in ("--model", "--gpu", "--workload", "--engine", "--price")
    differing = {p for p in changed.keys() | plain.keys() if changed.get(p, 0) != plain.get(p, 0)} - {"name", "assumed"}
    also = {"price"} if flag in ("--gpu", "--tp", "--dp") else set()  # the lowest price of another device or instance
    assert {p.split(".")[0] for p in differing} - also == {part}
    own = {p for p in differing if p.split(".")[0] not in also}
    assert by_name or own - {"workload.assumed"} == {path}  # what a flag says is no assumption of the profile


def leaves(value: object, path: str = "") -> dict[str, Any]:
    """Dotted path -> value of everything that is not a mapping with fields."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}" if path else key)
    return found


def test_flags_override_the_scenario_file() -> None:
    facts = json.loads(done("estimate", EXAMPLES / "16k.yaml", "--tp", "2", "--context", "16000", "--format", "json"))
    assert (facts["scenario"]["tp"], facts["scenario"]["context_tokens"]) == (2, 16000)


# Files written


def test_a_file_that_exists_stays_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text("mine")
    assert refused(*ESTIMATE, "-o", path) == f"planner: {path}: exists already; --force overwrites it\n"
    assert path.read_text() == "mine"
    assert done(*ESTIMATE, "-o", path, "--force") == ""
    assert path.read_text() == done(*ESTIMATE)
    assert [p.name for p in tmp_path.iterdir()] == ["r.txt"]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("r.yaml", "yaml"),
        ("r.YML", "yaml"),
        ("r.json", "json"),
        ("r.md", "markdown"),
        ("r.html", "html"),
        ("r", "text"),
        ("a.dir/.yaml", "yaml"),
        ("r.htm", "html"),
    ],
)
def test_the_output_is_written_as_its_name_ends(tmp_path: Path, name: str, form: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    done(*ESTIMATE, "-o", tmp_path / name)
    assert (tmp_path / name).read_text() == done(*ESTIMATE, "--format", form)
    done(*ESTIMATE, "-o", tmp_path / name, "--force", "--format", "text")
    assert (tmp_path / name).read_text() == done(*ESTIMATE)


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "there" / "r.txt")
    for arguments in ((), ("--force",)):
        done(*ESTIMATE, "-o", link, *arguments)
        assert link.is_symlink()
        assert (tmp_path / "there" / "r.txt").read_text() == done(*ESTIMATE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/r.txt", "cannot be written: No such file or directory"),
        ("", "is not a regular file"),
        ("fifo", "is not a regular file"),
        ("file/r.txt", "cannot be written: Not a directory"),
        ("a" * 300, "cannot be written: File name too long"),
    ],
)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_an_output_that_cannot_be_written(tmp_path: Path, path: str, message: str, force: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert refused(*ESTIMATE, "-o", tmp_path / path, *force) == f"planner: {tmp_path / path}: {message}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    done(*ESTIMATE, "-o", tmp_path / ("a" * 255))
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


@pytest.mark.parametrize(
    ("function", "error"),
    [("tempfile.mkstemp", PermissionError(13, "Permission denied")), ("os.replace", OSError(28, "No space left"))],
)
def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: OSError
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(function, fail)
    path = tmp_path / "r.txt"
    assert refused(*ESTIMATE, "-o", path) == f"planner: {path}: cannot be written: {error.strerror}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    assert run(*ESTIMATE, "-o", tmp_path / "r.txt").exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_an_estimate_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    refused(*ESTIMATE, "--tp", "3", "-o", tmp_path / "r.txt")
    assert list(tmp_path.iterdir()) == []


# Schemas and names


JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def fitting(schema: dict[str, Any], value: object, root: dict[str, Any]) -> list[str]:
    """Why a value does not have the shape of a schema: unknown and missing fields, wrong types."""
    if "$ref" in schema:
        return fitting(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema:
        tried = [fitting(option, value, root) for option in schema["anyOf"]]
        return [] if [] in tried else tried[0]
    kind = schema.get("type", "")
    if kind in JSON_TYPES and not isinstance(value, JSON_TYPES[kind]):
        return [f"{value!r} is no {kind}"]
    if isinstance(value, list):
        return [problem for item in value for problem in fitting(schema.get("items", {}), item, root)]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    fields = schema["properties"]
    found = [f"{name} is missing" for name in schema.get("required", ()) if name not in value]
    found += [f"{name} is unknown" for name in value if name not in fields and schema["additionalProperties"] is False]
    return found + [f"{k}: {p}" for k, v in value.items() if k in fields for p in fitting(fields[k], v, root)]


SHIPPED = {
    **{kind: sorted((catalog.bundled() / folder).glob("*.yaml")) for kind, folder in catalog.FOLDERS.items()},
    "scenario": [
        EXAMPLES / "16k.yaml",
        EXAMPLES / "32k.yaml",
        EXAMPLES.parent / "fleet-cost" / "assistant.yaml",
        EXAMPLES.parent / "tenants" / "assistant.yaml",
    ],
}


@pytest.mark.parametrize("kind", sorted(SHIPPED))
def test_the_schema_of_a_kind_fits_the_files_that_are_shipped(kind: str) -> None:
    schema = json.loads(done("schema", "price-list" if kind == "price" else kind))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for path in SHIPPED[kind]:
        fields = yaml.safe_load(json.dumps(load_mapping(path)))
        assert fitting(schema, fields, schema) == [], path
        name = schema["required"][0]
        assert f"{name} is missing" in fitting(schema, {k: v for k, v in fields.items() if k != name}, schema)
        assert "nonsense is unknown" in fitting(schema, {**fields, "nonsense": 1}, schema)
        assert fitting(schema, {**fields, name: [[]]}, schema) != []


@pytest.mark.parametrize("kind", ["report", "comparison", "search"])
def test_the_schema_of_a_result_fits_what_is_written(kind: str) -> None:
    contexts = ("--context", "4096", "--context", "8192") if kind == "comparison" else ()
    command = ("search", *ESTIMATE[1:], "--tp", "1", "--tp", "3") if kind == "search" else (*ESTIMATE, *contexts)
    schema = json.loads(done("schema", kind))
    result = json.loads(done(*command, "--format", "json"))
    assert fitting(schema, result, schema) == []
    assert "nonsense is unknown" in fitting(schema, {**result, "nonsense": 1}, schema)


@pytest.mark.parametrize("kind", sorted(catalog.FOLDERS.keys() - {"price"}))
def test_catalog_lists_everything_that_is_shipped(kind: str) -> None:
    head, *lines = done("catalog", f"{kind}s").splitlines()
    assert head.startswith("name ")
    assert [line.split()[0] for line in lines] == catalog.names(kind)
    assert done("catalog", f"{kind}s") == done("catalog", kind)
    rows = json.loads(done("catalog", f"{kind}s", "--format", "json"))
    assert [row["name"] for row in rows] == catalog.names(kind)
    for form in ("yaml", "markdown"):
        assert refused("catalog", kind, "--format", form).startswith(f"planner: --format: {form} is not offered here")


def test_the_catalog_of_prices_lists_every_row_on_every_term() -> None:
    rows = json.loads(done("catalog", "prices", "--format", "json"))
    lists = [load_mapping(catalog.bundled() / catalog.FOLDERS["price"] / f"{n}.yaml") for n in catalog.names("price")]
    assert len(rows) == sum(len(row["usd_per_instance_hour"]) for each in lists for row in each["prices"])
    assert done("catalog", "prices").splitlines()[0].split()[:2] == ["term", "usd"]
    aws = [row for row in rows if row["instance"] == "p5.48xlarge"]
    assert [(row["term"], row["usd_per_device_hour"], row["usd_per_instance_hour"]) for row in aws] == [
        ("on_demand", "6.8800", "55.04"),
        ("reserved_3y", "2.5869", "20.6951"),
    ]
    assert {row["as_of"] for row in aws} == {"2026-07-20"}


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("h100-sxm", {"h100-sxm"}),
        ("h100", {name for name in catalog.names("price") if name.startswith("h100-")}),
        ("a10", {"a10"}),  # a whole name is not a beginning
    ],
)
def test_prices_of_a_device_stand_by_term_from_the_cheapest(gpu: str, names: set[str]) -> None:
    rows = json.loads(done("catalog", "prices", "--gpu", gpu, "--format", "json"))
    assert {row["accelerator"] for row in rows} == names
    order = [("on_demand", "spot", "reserved_1y", "reserved_3y").index(row["term"]) for row in rows]
    assert order == sorted(order)
    for term in {row["term"] for row in rows}:
        rates = [Decimal(row["usd_per_device_hour"]) for row in rows if row["term"] == term]
        assert rates == sorted(rates)


def test_a_price_list_on_the_command_line_and_the_day_it_is_held_against(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    row = {"provider": "own", "instance": "n", "devices": 8, "as_of": "2026-01-01", "source": "test"}
    rows = [{**row, "usd_per_instance_hour": {"contract": 16}}]
    path.write_text(yaml.safe_dump({"accelerator": "h100-sxm", "currency": "USD", "prices": rows}))
    asked = (*ESTIMATE, "--price", f"{path}#own/n/contract", "--format", "json")
    facts = json.loads(done(*asked))
    assert facts["scenario"]["usd_per_device_hour"] == "2"
    assert any("333 days before 2026-11-30" in warning for warning in facts["warnings"])
    assert not any("stale" in w for w in json.loads(done(*asked, "--priced-on", "2026-02-01"))["warnings"])


def test_the_catalog_of_models_says_what_they_are() -> None:
    rows = {row["name"]: row for row in json.loads(done("catalog", "models", "--format", "json"))}
    assert len(rows) >= 100
    fields = ("model_type", "layers", "caches_by_kind", "kv_bytes_per_token", "state_bytes_per_request")
    assert [[rows[name][field] for field in fields] for name in ("llama-3.1-8b", "gpt-oss-120b", "qwen3.5-27b")] == [
        ["llama", 32, "32 full", 32 * 2 * 8 * 128 * 2, 0],
        ["gpt_oss", 36, "18 window, 18 full", 18 * 2 * 8 * 64 * 2, 0],
        ["qwen3_5", 64, "48 state, 16 full", 16 * 2 * 4 * 256 * 2, 153_944_064],
    ]
    assert rows["deepseek-v3"]["kv_bytes_per_token"] == 61 * (512 + 64) * 2
    assert all(0 < row["active_parameters"] <= row["parameters"] for row in rows.values())


# Hybrids

HYBRID = ("estimate", "--model", "gpt-oss-120b", "--gpu", "h100-sxm", "--workload", "private-assistant")


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_cache_over_the_context_is_a_table_for_hybrids_only(form: str) -> None:
    context = ("--context", "32768", "--format", form)
    hybrid, plain = done(*HYBRID, *context), done(*ESTIMATE, *context)
    rows = [re.findall(r"[\d,.]+(?: [GMK]iB)?", line) for line in hybrid.splitlines()]
    for tokens, reserved, held in (
        ("1,024", "72.56 MiB", "40.50 MiB"),  # (64 + 64 + 1) and (64 + 8) blocks of 576 KiB
        ("32,768", "1.69 GiB", "1.13 GiB"),
    ):
        assert [tokens, reserved, held] in rows
    assert not re.search(r"^\W*1,024\W", plain, re.MULTILINE)


def test_a_plot_is_drawn_where_it_is_asked_for(tmp_path: Path) -> None:
    context = ("--context", "32768")
    bare, plotted = done(*HYBRID, *context), done(*HYBRID, *context, "--plot")
    assert plotted.startswith(bare)
    drawn = plotted.removeprefix(bare)
    assert all(word in drawn for word in ("context, Ki tokens", "GiB", "reserved", "held"))
    assert len(drawn.splitlines()) > 16
    for form in ("yaml", "json", "markdown"):
        assert done(*HYBRID, "--plot", "--format", form) == done(*HYBRID, "--format", form)
    assert done(*HYBRID, *context, "--plot", "-o", tmp_path / "r.txt") == ""
    assert (tmp_path / "r.txt").read_text("utf-8") == bare
    done(*HYBRID, *context, "--format", "yaml", "-o", tmp_path / "r.yaml")
    assert done("report", tmp_path / "r.yaml", "--plot") == plotted


def test_a_plot_of_several_contexts_is_that_of_the_longest() -> None:
    longest = done(*HYBRID, "--context", "32768", "--plot").removeprefix(done(*HYBRID, "--context", "32768"))
    contexts = ("--context", "32768", "--context", "16384")
    assert done(*HYBRID, *contexts, "--plot").removeprefix(done(*HYBRID, *contexts)) == longest


@pytest.mark.parametrize("variable", [{"HF_HUB_CACHE": "cache/hub"}, {"HF_HOME": "cache"}, {"HOME": "home"}])
def test_where_the_hub_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    folder = (
        Path("home/.cache/huggingface/hub" if "HOME" in variable else "cache/hub") / "models--org--name/snapshots/1"
    )
    folder.mkdir(parents=True)
    config = load_mapping(catalog.bundled() / "model_configs/qwen3-4b.yaml")["config"]
    (folder / "config.json").write_text(json.dumps(config))
    model = yaml.safe_load(done("import", "org/name"))
    assert (model["name"], model["config"]) == ("org/name", config)


def test_arrivals_take_the_place_of_the_profiles_load() -> None:
    arguments = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "-f", "json")
    few = json.loads(run(*arguments, "--arrivals", "1").stdout)
    assert few["scenario"]["concurrency"] == few["latency"]["concurrency_p99"] < 64
    both = json.loads(run(*arguments, "--arrivals", "1", "--concurrency", "64").stdout)
    assert both["scenario"]["concurrency"] == 64


def test_an_objective_that_nothing_meets_ends_with_3_and_prints_the_report() -> None:
    asked = ("estimate", "--model", "llama-3.1-8b", "--gpu", "l40s", "--workload", "rag", "--ttft-p95", "0.1")
    result = run(*asked, "-f", "json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["meets_objectives"] is False


def test_devices_that_miss_an_objective_end_with_3() -> None:
    arguments = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "rag", "--devices", "2")
    assert run(*arguments, "--itl-p95", "0.01").exit_code == 3
    assert run(*arguments, "--itl-p95", "1").exit_code == 0
