"""Every derivation is true with the numbers put in: its arithmetic is read from its text and done again."""

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from planner import catalog, plan
from planner.errors import InputError
from planner.origin import Origin
from planner.report import Report

CHECKED = (
    "kv_cache.bytes_per_token",
    "kv_cache.state_bytes_per_request",
    "kv_cache.bytes_per_block",
    "kv_cache.blocks_per_request",
    "kv_cache.bytes_per_request",
    "kv_cache.score_matrix_bytes",
    "capacity.num_blocks",
    "capacity.requests_per_replica",
    "capacity.requests_per_replica_at_mean",
    "capacity.max_concurrency",
    "capacity.slots_per_replica",
    "fleet.active_replicas",
    "fleet.devices",
    "memory.kv_budget_bytes",
)
WORKLOAD = {
    "name": "odd",
    "context_tokens": 1000,
    "input_tokens": {"mean": 500},
    "output_tokens": {"mean": 100},
    "concurrency": 777,
    "source": "made up: a length that no block divides",
}


def report(model: str, engine: str) -> Report | None:
    """The model on the fewest B200s that hold it; None where the engine refuses it."""
    given: dict[str, Any] = {
        "model": model,
        "accelerator": "b200-sxm",
        "engine": engine,
        "workload": WORKLOAD,
        "price": {"usd_per_hour": 3},
    }
    if engine == "generic":
        given |= {"memory.workspace_gib": 4, "memory.reserve_gib": 4}
    for tp in (1, 2, 4, 8, 16):
        try:
            found = plan.estimate(catalog.load_scenario({}, Origin("test"), given | {"parallelism.tp": tp}))
        except InputError:
            return None
        if found.fits:
            return found
    return None


def least(*numbers: Fraction) -> Fraction:
    return min(numbers)


def most(*numbers: Fraction) -> Fraction:
    return max(numbers)


def value(text: str) -> Fraction:
    """What numbers, x, //, /, +, -, ceil, min, max and words about them come to; [notes] are left out."""
    expression = re.sub(r"\[[^\]]*\]", "", text)
    expression = re.sub(r"(?<=\d),(?=\d{3})", "", expression).replace("^2", "**2")
    kept = {"x": "*", "ceil": "ceil", "min": "least", "max": "most"}
    expression = re.sub(r"[A-Za-z][A-Za-z_'-]*", lambda m: kept.get(m[0], ""), expression).replace(":", "")
    numbers = re.sub(r"\d+(?:\.\d+)?", lambda m: f"F('{m[0]}')", expression).strip()
    return Fraction(eval(numbers, {"__builtins__": {}}, {"F": Fraction, "ceil": ceil, "least": least, "most": most}))  # noqa: S307


def stated(text: str) -> Fraction:
    """The number after the last equals sign."""
    found = re.match(r"-?[\d,]+(?:\.\d+)?", text.rpartition(" = ")[2])
    assert found, text
    return Fraction(Decimal(found[0].replace(",", "")))


MONEY: dict[str, dict[str, Any]] = {
    "by the device": {},
    "on demand": {"price": "aws/p5.48xlarge"},
    "discounted": {"price": "aws/p5.48xlarge/reserved_3y"},
    "mixed": {"commitment": {"devices": 9, "price": "aws/p5.48xlarge/reserved_3y", "peak_hours_share": "0.35"}},
    "late and retried": {"workload.retries_per_failure": "1.5", "workload.objectives.ttft_p95_s": 3},
    "reused": {"workload.concurrency": None, "workload.arrivals_per_s": 40},
    "beside an API": {
        "api_price": {"usd_per_1m_input_tokens": "0.15", "usd_per_1m_output_tokens": "0.6"},
        "workload.retries_per_failure": "0.5",
    },
}


@pytest.mark.parametrize("name", MONEY)
def test_every_derivation_of_money_comes_to_its_figure(name: str) -> None:
    given = {"model": "llama-3.1-8b", "accelerator": "h100-sxm", "workload": "private-assistant", "price": 2}
    lines = {"other_monthly": [{"name": "people", "usd": "0.99"}], "workload.concurrency": 500}
    found = plan.estimate(catalog.load_scenario(given, Origin("test"), lines | MONEY[name]))
    derived = [each for each in found.derivations if each.path.startswith(("cost.", "prefix."))]
    assert {"cost.monthly_usd", "cost.usage_usd", "cost.per_1m_output_tokens_usd"} <= {each.path for each in derived}
    assert (name == "reused") == any(each.path == "prefix.saved_monthly_usd" for each in derived)
    for each in derived:
        text = each.text.replace("$", "").replace("%", "")
        shown = Fraction(1, 200) if each.path.endswith("_usd") else Fraction(1, 10**6)
        assert abs(value(text.rpartition(" = ")[0]) - stated(text)) <= shown, each.text


@pytest.mark.parametrize("engine", catalog.names("engine"))
def test_every_derivation_of_every_shipped_model_is_true(engine: str) -> None:
    wrong, reports = [], 0
    for model in catalog.names("model"):
        found = report(model, engine)
        if found is None:
            continue
        reports += 1
        for derivation in found.derivations:
            if derivation.path not in CHECKED or " = " not in derivation.text:
                continue
            left = derivation.text.rpartition(" = ")[0]
            try:
                came_to = value(left)
            except (SyntaxError, TypeError, NameError) as error:
                wrong.append(f"{model}: {derivation.path}: cannot be done: {derivation.text} ({error})")
                continue
            exact = came_to == stated(derivation.text)
            rounded = derivation.path == "capacity.max_concurrency" and abs(came_to - stated(derivation.text)) < 1e-4
            if not exact and not rounded:
                wrong.append(f"{model}: {derivation.path}: {derivation.text} comes to {float(came_to):,}")
    assert reports > 80
    assert wrong == []
