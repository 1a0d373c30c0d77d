"""Saved reports and comparisons come back equal, and render without planning again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from planner import catalog, saved
from planner.compare import compare
from planner.errors import InputError
from planner.inputs import Model
from planner.plan import estimate
from planner.report import Comparison, Report
from tests.scenarios import CHAT, report
from tests.scenarios import example as worked_example

RESULTS: dict[str, Report | Comparison] = {
    "worked example": estimate(worked_example("16k"), devices=8),
    "no fleet": report("llama-3.1-70b"),
    "quantised on instances": report(
        "qwen3-235b-a22b-fp8",
        overrides={
            "parallelism.tp": 4,
            "price": {
                "provider": "p",
                "instance": "node",
                "devices": 8,
                "usd_per_hour": "1.23456",
                "as_of": "2026-01-31",
            },
        },
    ),
    "comparison": compare([estimate(worked_example("16k")), estimate(worked_example("32k"))]),
}
FORMATS = {"yaml": saved.to_yaml, "json": saved.to_json}


def read_back(folder: Path, text: str, suffix: str = "yaml") -> saved.Result:
    path = folder / f"saved.{suffix}"
    path.write_text(text, "utf-8")
    return saved.read(path)


@pytest.mark.parametrize("name", list(RESULTS))
@pytest.mark.parametrize("suffix", list(FORMATS))
def test_what_was_saved_is_read_back_equal(name: str, suffix: str, tmp_path: Path) -> None:
    write: Callable[[Any], str] = FORMATS[suffix]
    text = write(RESULTS[name])
    again = read_back(tmp_path, text, suffix)
    assert again == RESULTS[name]
    assert write(again) == text


@given(st.text(max_size=60).filter(lambda text: text.isprintable()))
@example("0E0")
@example("1e9")
@example("null")
@example("1:30")
def test_any_printable_title_survives(tmp_path_factory: pytest.TempPathFactory, title: str) -> None:
    base = RESULTS["worked example"]
    assert isinstance(base, Report)
    titled = base.model_copy(update={"scenario": base.scenario.model_copy(update={"title": title})})
    for suffix, write in FORMATS.items():
        assert read_back(tmp_path_factory.getbasetemp(), write(titled), suffix) == titled


def test_bytes_are_integers_and_money_is_text_in_cents() -> None:
    fields = yaml.safe_load(saved.to_yaml(RESULTS["worked example"]))
    assert fields["memory"]["device_bytes"] == 80 * 2**30
    assert fields["cost"]["monthly_usd"] == "14900.00"
    assert (fields["kind"], fields["schema_version"]) == ("planner report", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 1}, "schema_version: this version reads schema 3, not 1: plan it again"),
        ({"schema_version": None}, "schema_version: this version reads schema 3, not None"),
        ({"kind": "another report"}, "kind: is not a saved report"),
        ({"fits": "perhaps"}, "fits: "),
        ({"surprise": 1}, "surprise: is not a field"),
        ({"memory": None}, "memory: "),
        ({"binding_reason": "\x1b[31mred"}, "binding_reason: "),
    ],
)
@pytest.mark.parametrize("name", ["worked example", "comparison"])
def test_what_is_not_this_versions_report_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fields = RESULTS[name].model_dump(mode="json")
    if name == "comparison" and not set(change) <= {"schema_version", "kind", "surprise"}:
        fields["reports"][0].update(change)
    else:
        fields.update(change)
    with pytest.raises(InputError, match=message):
        read_back(tmp_path, json.dumps(fields), "json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("utilisation", float("nan"), "latency.utilisation: "),
        ("concurrency_mean", float("inf"), "latency.concurrency_mean: "),
        ("tpot_s", {"low": 5, "best": 1, "high": 3}, "low 5, best 1 and high 3 do not ascend"),
    ],
)
def test_figures_of_speed_are_finite_and_their_ranges_ascend(
    field: str, value: object, message: str, tmp_path: Path
) -> None:
    workload = {**CHAT, "arrivals_per_s": 5}
    fields = report("llama-3.1-8b", overrides={"workload": workload}).model_dump(mode="json")
    fields["latency"][field] = value
    with pytest.raises(InputError, match=message):
        read_back(tmp_path, json.dumps(fields), "json")


def test_model_yaml_is_a_model_again(tmp_path: Path) -> None:
    model = catalog.load_model("qwen3-30b-a3b-fp8")
    path = tmp_path / "model.yaml"
    path.write_text(saved.model_yaml(model), "utf-8")
    again: Model = catalog.load_model(str(path))
    assert again.model_dump() == model.model_dump()
