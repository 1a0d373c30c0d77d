"""Scenarios for tests: a model, an accelerator and a small workload, with any field overridden by its dotted path."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import catalog
from planner.inputs import Scenario
from planner.origin import Origin
from planner.plan import estimate
from planner.report import Report

ROOT = Path(__file__).parent.parent
ORACLES = Path(__file__).parent / "oracles"


def _unpacked(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((ORACLES / file).read_bytes()))
    return found


VENDORS = _unpacked("model_configs.json.gz")
"""Vendors' configs; `models` by ORG/NAME."""
ENGINE = _unpacked("kv_engine_oracle.json.gz")
"""What vLLM 0.33's own code computes for them."""
CHAT: dict[str, Any] = {
    "name": "chat",
    "context_tokens": 16384,
    "input_tokens": {"mean": 1155, "p50": 1020, "p90": 2735, "p95": 4083, "p99": 4142, "max": 14050},
    "output_tokens": {"mean": 211, "max": 1000},
    "concurrency": 64,
    "source": "test",
}
"""A workload with the lengths of the chat profile."""
EXAMPLES = ROOT / "examples" / "context-upgrade"


def vendor_model(name: str, **changed: Any) -> dict[str, Any]:
    """A model input with a vendor's config; keyword arguments replace config fields."""
    row = VENDORS["models"][name]
    fields = {"name": name, "config": {**row["config"], **changed}, "source": row["source"]}
    return fields | ({"hf_quant_config": row["hf_quant_config"]} if row.get("hf_quant_config") else {})


def scenario(
    model: str | Mapping[str, Any], accelerator: str = "h100-sxm", overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """One request of 512 tokens at a dollar per device-hour, but for what `overrides` says."""
    fields: dict[str, Any] = {
        "model": model if isinstance(model, str) else dict(model),
        "accelerator": accelerator,
        "workload": {"name": "test", "context_tokens": 512, "concurrency": 1, "source": "test"},
        "price": {"usd_per_hour": 1},
    }
    return catalog.load_scenario(fields, Origin("test"), overrides or {})


def report(
    model: str | Mapping[str, Any], accelerator: str = "h100-sxm", overrides: Mapping[str, Any] | None = None
) -> Report:
    """The report on such a scenario."""
    return estimate(scenario(model, accelerator, overrides))


def example(name: str, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """The worked example at 16k or 32k tokens of context."""
    return catalog.load_scenario_file(EXAMPLES / f"{name}.yaml", overrides or {})
