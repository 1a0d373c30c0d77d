"""Names, paths, overrides and prices: what a scenario resolves to, and which files that opens."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import catalog, prices, replica
from planner.calibrate import serving_errors, shipped
from planner.calibration import Calibration
from planner.catalog import load_model, load_scenario, load_scenario_file
from planner.documents import load_mapping, validate
from planner.errors import InputError
from planner.inputs import Price, PriceList, Scenario
from planner.origin import Origin
from planner.plan import estimate
from tests.scenarios import ROOT

FLAGS = Origin("command line")
NAMED = {"model": "llama-3.1-8b", "accelerator": "h100-sxm", "workload": "chat"}
WORKLOAD = {"name": "w", "context_tokens": 1024, "concurrency": 4, "source": "test"}


def load(fields: dict[str, Any] | None = None, overrides: dict[str, Any] | None = None) -> Scenario:
    return load_scenario({**NAMED, **(fields or {})}, FLAGS, overrides or {})


def refusal(fields: dict[str, Any] | None = None, overrides: dict[str, Any] | None = None) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load(fields, overrides)
    return caught.value.problems


@pytest.mark.parametrize("kind", sorted(catalog.FOLDERS))
def test_shipped_names_are_the_file_names_sorted(kind: str) -> None:
    names = catalog.names(kind)
    assert names == sorted(names)
    assert names


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in catalog.FOLDERS if kind != "price" for name in catalog.names(kind)]
)
def test_every_shipped_file_is_valid_and_named_after_itself(kind: str, name: str) -> None:
    path = catalog.bundled() / catalog.FOLDERS[kind] / f"{name}.yaml"
    assert validate(catalog.KINDS[kind], load_mapping(path), Origin(str(path))).model_dump()["name"] == name


@pytest.mark.parametrize("name", catalog.names("price"))
def test_every_price_list_is_of_a_shipped_accelerator(name: str) -> None:
    path = catalog.bundled() / catalog.FOLDERS["price"] / f"{name}.yaml"
    listed = validate(PriceList, load_mapping(path), Origin(str(path)))
    assert listed.accelerator == name
    assert name in catalog.names("accelerator")
    assert all(term in prices.TERMS for row in listed.prices for term in row.usd_per_instance_hour)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("model", "qwen3-4", "model 'qwen3-4' is unknown: neither shipped nor a file; nearest known: qwen3-4b"),
        ("model", "QWEN3-4B", "model 'QWEN3-4B' is unknown: neither shipped nor a file; nearest known: qwen3-4b"),
        ("accelerator", "h100", "accelerator 'h100' is unknown: neither shipped nor a file; nearest known: h100-"),
        ("workload", "chta", "workload 'chta' is unknown: neither shipped nor a file; nearest known: chat"),
        ("engine", "vllm", "engine 'vllm' is unknown: neither shipped nor a file; nearest known: vllm-0."),
        ("engine", "..", "..: is a directory; a file is needed"),
        ("workload", "chat.yaml", "chat.yaml: cannot be read: No such file or directory"),
        ("workload", "../workloads/chat", "../workloads/chat: cannot be read: No such file or directory"),
        ("accelerator", "a" * 5000, "accelerator 'aaa"),
        ("workload", 7, "command line: workload: a name, a path or a mapping is needed, not 7"),
        ("model", None, "command line: model: a name, a path or a mapping is needed, not None"),
        ("price", [2.5], "command line: price: a name, a path or a mapping is needed, not [2.5]"),
        ("price", True, "command line: price: a name, a path or a mapping is needed, not True"),
    ],
)  # fmt: skip
def test_an_unknown_input_gives_one_message(
    kind: str, given: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = refusal({kind: given}, {"parallelism.tp": 1, f"{kind}.notes": "x"})
    assert found.startswith(message)


def test_what_is_missing_is_named_with_its_flag() -> None:
    with pytest.raises(InputError) as caught:
        load_scenario({}, FLAGS, {})
    assert caught.value.problems == (
        "command line: model: missing; name it there or with --model",
        "command line: accelerator: missing; name it there or with --gpu",
        "command line: workload: missing; name it there or with --workload",
    )


def test_all_inputs_report_their_problems_at_once() -> None:
    found = refusal({"workload": {**WORKLOAD, "concurrency": 0}, "accelerator": "h100", "engine": "vllm"})
    assert [problem.split(" ")[0] for problem in found] == ["accelerator", "engine", "command"]


def test_paths_in_a_scenario_start_at_its_folder_and_flags_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, concurrency in (("there", 3), ("here", 5)):
        (tmp_path / folder / "sub").mkdir(parents=True)
        text = yaml.safe_dump({**WORKLOAD, "concurrency": concurrency})
        (tmp_path / folder / "sub" / "w.yaml").write_text(text)
    scenario = tmp_path / "there" / "s.yaml"
    scenario.write_text(yaml.safe_dump({**NAMED, "workload": "sub/w.yaml"}))
    monkeypatch.chdir(tmp_path / "here")
    assert load_scenario_file(scenario, {}).workload.concurrency == 3
    assert load_scenario_file(scenario, {"workload": "sub/w.yaml"}).workload.concurrency == 5
    assert load_scenario_file(Path("../there/s.yaml"), {}).workload.concurrency == 3


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "mine"):
        (tmp_path / name).write_text(yaml.safe_dump(WORKLOAD))
    assert load({"workload": "chat"}).workload.name == "chat"
    assert load({"workload": "mine"}).workload.name == "w"
    assert load({"workload": "./chat"}).workload.name == "w"


def test_models_by_vendor_config_are_named_after_their_folder(tmp_path: Path) -> None:
    config = load_model("llama-3.1-8b").config
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(config))
    for ref, name in ((folder / "config.json", "My-Llama"), (folder, "My-Llama"), (tmp_path / "other.yaml", "other")):
        model = load_model(str(ref))
        assert (model.name, model.config, model.weights) == (name, config, None)
    (tmp_path / "neither.yaml").write_text("a: 1")
    with pytest.raises(InputError, match="has neither a config field"):
        load_model(str(tmp_path / "neither.yaml"))


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("context_tokens", 4096, lambda s: s.context_tokens),
        ("workload.concurrency", 7, lambda s: s.workload.concurrency),
        ("workload.input_tokens.mean", 900, lambda s: s.workload.input_tokens.mean),
        ("spares.fraction", Decimal("0.1"), lambda s: s.spares.fraction),
        ("parallelism.tp", 2, lambda s: s.parallelism.tp),
        ("memory.weights_gib", Decimal(3), lambda s: s.memory.weights_gib),
        ("model.config.rope_scaling", {"rope_type": "yarn"}, lambda s: s.model.config["rope_scaling"]),
        ("model.config.rope_scaling.factor", 4, lambda s: s.model.config["rope_scaling"]["factor"]),
        ("model.config.new.nested.field", 1, lambda s: s.model.config["new"]["nested"]["field"]),
        ("model.config.rope_scaling", None, lambda s: s.model.config["rope_scaling"]),
        ("model.notes", "mine", lambda s: s.model.notes),
        ("accelerator.memory_mib", 10**5, lambda s: s.accelerator.memory_mib),
        ("engine.null_blocks", 0, lambda s: s.engine.null_blocks),
        ("price.usd_per_hour", Decimal(2), lambda s: s.price.usd_per_hour),
    ],
)  # fmt: skip
def test_an_override_lands_on_its_field(path: str, value: object, found: Any) -> None:
    assert found(load(overrides={path: value})) == value


def test_overrides_leave_the_fields_given_as_they_were() -> None:
    fields: dict[str, Any] = {**NAMED, "workload": {**WORKLOAD}, "spares": {"fraction": 0}}
    before = yaml.safe_dump(fields)
    overrides = {"workload.concurrency": 9, "spares.fraction": 1, "engine": "vllm-0.19"}
    changed = load_scenario(fields, FLAGS, overrides)
    assert (changed.workload.concurrency, str(changed.spares.fraction), changed.engine.name) == (9, "1", "vllm-0.19")
    assert yaml.safe_dump(fields) == before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "--set : a path of field names is needed"),
        ("x..y", "--set x..y: a path of field names is needed"),
        ("workload.", "--set workload.: a path of field names is needed"),
        ("model.origin", "--set model.origin: a path of field names is needed"),
        ("model.origin.file", "--set model.origin.file: a path of field names is needed"),
        ("model.config.hidden_size.x", "--set model.config.hidden_size.x: config.hidden_size is not a mapping here"),
        ("nonsense", "command line: nonsense: is not a field that planner knows here"),
        ("workload.nonsense", "command line: workload.nonsense: is not a field that planner knows here"),
        ("spares.nonsense", "command line: spares.nonsense: is not a field that planner knows here"),
    ],
)
def test_a_wrong_path_to_set_is_refused(path: str, message: str) -> None:
    assert refusal(overrides={path: 1})[0].startswith(message)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workload.concurrency", 0),
        ("parallelism.tp", "two"),
        ("price", {"usd_per_hour": -1}),
        ("model.name", ""),
        ("accelerator.memory_mib", 1.5),
    ],
)
def test_a_wrong_value_to_set_is_not_blamed_on_the_file(tmp_path: Path, path: str, value: object) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({**NAMED, "workload": WORKLOAD, "parallelism": {"tp": 1}}))
    with pytest.raises(InputError) as caught:
        load_scenario_file(file, {path: value})
    (found,) = caught.value.problems
    assert found.startswith(f"command line: {path}")


def test_a_wrong_config_value_to_set_is_not_blamed_on_the_file() -> None:
    with pytest.raises(InputError) as caught:
        estimate(load(overrides={"model.config.vocab_size": "x", "model.config.rope_scaling.rope_type": 1}))
    assert caught.value.problems == (
        "command line: model.config.vocab_size: an integer is needed, not 'x'",
        "command line: model.config.rope_scaling.rope_type: 1 is not accepted; accepted: a string",
    )


def test_what_nobody_gave_is_listed_as_assumed() -> None:
    assert load().assumed == ("engine", "price", "spares", "hours_per_month")
    given = {"engine": "vllm-0.19", "price": {"usd_per_hour": 1}, "spares": {"replicas": 1}, "hours_per_month": 720}
    assert load(given).assumed == ()
    assert load().engine.name == catalog.DEFAULT_ENGINE


# Prices


ROWS = [
    {"provider": "a", "instance": "one", "devices": 1, "as_of": "2026-01-01", "terms": {"on_demand": 3, "spot": 1}},
    {"provider": "b", "instance": "eight", "devices": 8, "as_of": "2026-01-01", "terms": {"on_demand": 32}},
    {"provider": "c", "instance": "stale", "devices": 8, "as_of": None, "terms": {"on_demand": 8}},
    {"provider": "d", "instance": "reserved", "devices": 8, "as_of": "2026-01-01", "terms": {"reserved_1y": 8}},
    {"provider": "e", "instance": "eight/x", "devices": 8, "as_of": "2026-01-01", "terms": {"on_demand": 32}},
]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A price list of our own, and nothing else shipped but what the scenario names."""
    rows = [
        {"usd_per_instance_hour": row["terms"], "source": "test", **{k: v for k, v in row.items() if k != "terms"}}
        for row in ROWS
    ]
    for kind, folder in catalog.FOLDERS.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in (*NAMED.values(), catalog.DEFAULT_ENGINE, "h100-pcie"):
            source = catalog.bundled() / folder / f"{name}.yaml"
            if kind != "price" and source.exists():
                (tmp_path / folder / source.name).write_bytes(source.read_bytes())
    prices = {"accelerator": "h100-sxm", "currency": "USD", "prices": rows}
    (tmp_path / catalog.FOLDERS["price"] / "h100-sxm.yaml").write_text(yaml.safe_dump(prices))
    monkeypatch.setattr(catalog, "bundled", lambda: tmp_path)


def sold(price: Price) -> tuple[str | None, str | None, str, Decimal]:
    return price.provider, price.instance, price.term, price.usd_per_hour


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("wanted", "tp", "expected"),
    [
        (None, 1, ("a", "one", "on_demand", 3)),
        (None, 2, ("b", "eight", "on_demand", 32)),
        (None, 8, ("b", "eight", "on_demand", 32)),
        ("a/one", 8, ("a", "one", "on_demand", 3)),
        ("a/one/spot", 1, ("a", "one", "spot", 1)),
        ("c/stale", 1, ("c", "stale", "on_demand", 8)),
        ("d/reserved/reserved_1y", 1, ("d", "reserved", "reserved_1y", 8)),
        (None, 16, ("b", "eight", "on_demand", 32)),  # no instance is as large: the largest
        ("e/eight/x", 1, ("e", "eight/x", "on_demand", 32)),
        ("e/eight/x/on_demand", 1, ("e", "eight/x", "on_demand", 32)),
        ({"usd_per_hour": "2.5"}, 16, (None, None, "given", Decimal("2.5"))),
        (2.5, 16, (None, None, "given", Decimal("2.5"))),
        (3, 1, (None, None, "given", Decimal(3))),
    ],
)
def test_which_price_is_taken(wanted: object, tp: int, expected: tuple[object, ...]) -> None:
    fields = {"price": wanted} if wanted else {}
    assert sold(load({**fields, "parallelism": {"tp": tp}}).price) == expected
    assert sold(load(fields, {"parallelism.tp": tp}).price) == expected


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("wanted", "tp", "message"),
    [
        (
            "a/two",
            1,
            "price 'a/two' is not listed for h100-sxm; nearest known: a/one; on terms: on_demand, spot, reserved_1y",
        ),
        ("a", 1, "price 'a' is not listed for h100-sxm"),
        ("a/one/weekly", 1, "price 'a/one/weekly' is not listed for h100-sxm; nearest known: a/one"),
        ("a/one/reserved_3y", 1, "price 'a/one/reserved_3y': no reserved_3y price is listed; listed: on_demand, spot"),
        ("d/reserved", 1, "price 'd/reserved': no on_demand price is listed; listed: reserved_1y"),
    ],
)
def test_a_price_that_is_not_listed_is_refused(wanted: str | None, tp: int, message: str) -> None:
    found = refusal({"price": wanted} if wanted else {}, {"parallelism.tp": tp})
    assert len(found) == 1
    assert found[0].startswith(message)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("name", ["h100-pcie", "../prices/h100-sxm", "x" * 200])
def test_an_accelerator_without_a_price_list_is_not_free(name: str) -> None:
    shipped = load_mapping(catalog.bundled() / "profiles/accelerators/h100-pcie.yaml")
    (found,) = refusal({"accelerator": {**shipped, "name": name}})
    assert found.startswith(f"accelerator {name} has no listed price, and an unpriced device is not free")


CONTRACT = {
    "provider": "own",
    "instance": "node",
    "devices": 8,
    "usd_per_instance_hour": {"on_demand": 40, "contract": "22.4"},
    "as_of": "2026-05-01",
    "source": "our contract",
}


def own_list(folder: Path, **changed: Any) -> Path:
    """A price list of one's own with one row."""
    path = folder / "own.yaml"
    fields = {"accelerator": "h100-sxm", "currency": "USD", "prices": [CONTRACT], **changed}
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_file_holds_one_price_or_a_list_of_which_one_is_named(tmp_path: Path) -> None:
    path = own_list(tmp_path)
    found = load({"price": f"{path}#own/node/contract"}).price
    assert sold(found) == ("own", "node", "contract", Decimal("22.4"))
    assert found.list_rate == 40
    assert sold(load({"price": f"{path}#own/node"}).price) == ("own", "node", "on_demand", Decimal(40))
    one = tmp_path / "one.yaml"
    one.write_text("{provider: own, instance: node, devices: 8, term: contract, usd_per_hour: '22.4'}")
    assert sold(load({"price": str(one)}).price) == ("own", "node", "contract", Decimal("22.4"))
    assert load({"price": str(one)}).price.list_rate is None


def test_a_price_file_in_a_scenario_starts_at_its_folder_and_on_the_command_line_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    own_list(inner)
    scenario = inner / "scenario.yaml"
    scenario.write_text(yaml.safe_dump({**NAMED, "price": "own.yaml#own/node"}))
    assert load_scenario_file(scenario, {}).price.instance == "node"
    monkeypatch.chdir(inner)
    scenario.rename(tmp_path / "scenario.yaml")
    assert load_scenario_file(tmp_path / "scenario.yaml", {"price": "own.yaml#own/node"}).price.instance == "node"


def test_a_price_file_that_does_not_say_one_price_is_refused(tmp_path: Path) -> None:
    path = own_list(tmp_path)
    (found,) = refusal({"price": str(path)})
    assert found == f"{path} is a list of prices, and which is meant must be said: {path}#own/node"
    (found,) = refusal({"price": f"{path}#own/nodes"})
    assert found.startswith(
        f"price 'own/nodes' is not listed for h100-sxm in {path}; nearest known: own/node; on terms: "
    )
    (found,) = refusal({"price": f"{path}#own/node/spot"})
    assert found == "price 'own/node/spot': no spot price is listed; listed: contract, on_demand"
    (found,) = refusal({"price": f"{path}#own/node"}, {"accelerator": "l4"})
    assert found == f"{path}:1: accelerator: these are prices of h100-sxm, not of l4"
    own_list(tmp_path, prices=[CONTRACT, {**CONTRACT, "region": "other"}])
    (found,) = refusal({"price": f"{path}#own/node"})
    assert found.startswith("price 'own/node' is listed 2 times for h100-sxm")
    path.write_text("usd_per_hour: 3")
    (found,) = refusal({"price": f"{path}#own/node"})
    assert found.endswith("holds one price and no list: 'own/node' cannot be looked up in it")
    for text, wrong in (("usd_per_hour: -3", "greater than 0"), ("{}", "usd_per_hour"), ("[1]", "mapping")):
        path.write_text(text)
        assert wrong in refusal({"price": str(path)})[0]
    assert "No such file" in refusal({"price": str(tmp_path / "none.yaml")})[0]


@pytest.mark.parametrize(
    ("as_of", "priced_on", "days", "said"),
    [
        ("2026-01-01", "2026-06-30", 180, None),  # 180 days later
        ("2026-01-01", "2026-07-01", 180, "stale: as of 2026-01-01, 181 days before 2026-07-01; price_stale_days"),
        ("2026-01-01", "2026-01-03", 1, "stale: as of 2026-01-01, 2 days before 2026-01-03; price_stale_days allows 1"),
        ("2026-01-01", "2025-01-01", 180, None),  # quoted for later
        ("2026-01-01", None, 180, None),
        (None, "2026-07-01", 180, "undated: treat it as stale"),
        (None, None, 180, "undated: treat it as stale"),
    ],
)
def test_a_price_ages(as_of: str | None, priced_on: str | None, days: int, said: str | None) -> None:
    price = {"provider": "a", "instance": "one", "usd_per_hour": 3, "as_of": as_of}
    report = estimate(load({"price": price, "priced_on": priced_on, "price_stale_days": days}))
    found = [warning for warning in report.warnings if warning.startswith("the price of a one given is ")]
    assert [warning.removeprefix("the price of a one given is ")[: len(said or "")] for warning in found] == (
        [said] if said else []
    )


def test_the_day_of_a_plan_changes_nothing_but_warnings() -> None:
    new, old = (estimate(load({"priced_on": day})) for day in ("2026-11-30", "2036-11-30"))
    assert len(old.warnings) == len(new.warnings) + 1
    assert old.model_copy(update={"warnings": new.warnings}) == new


# Files


@contextmanager
def opened_files() -> Iterator[list[Path]]:
    """The data files that are opened meanwhile; an audit hook sees every open and cannot be removed, hence the flag."""
    found: list[Path] = []
    watching = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and str(arguments[0]).endswith((".yaml", ".json", ".safetensors")):
            found.append(Path(arguments[0]))

    sys.addaudithook(hook)
    try:
        yield found
    finally:
        watching.clear()


def test_an_estimate_opens_only_what_it_names() -> None:
    for kept in (replica._shipped_times, shipped.shipped_calibration, serving_errors.serving_accuracy):
        kept.cache_clear()
    with opened_files() as found:
        estimate(load())
    assert sorted(str(path.relative_to(catalog.bundled())) for path in found) == [
        "model_configs/llama-3.1-8b.yaml",
        "profiles/accelerators/h100-sxm.yaml",
        "profiles/accuracy/serving.yaml",
        "profiles/calibrations/h100-sxm-vllm.yaml",
        "profiles/engines/vllm-0.33.yaml",
        "profiles/kernels/small.yaml",
        "profiles/prices/h100-sxm.yaml",
        "profiles/workloads/chat.yaml",
    ]
    with opened_files() as found:
        estimate(load({"price": {"usd_per_hour": 1}, "workload": WORKLOAD}))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("family", "constants", "message"),
    [
        ("gemm", {"floor_us": 1e300}, "kernels.0.constants.kernel.floor_us: Input should be less than"),
        (
            "gemm",
            {"memory_efficiency": 1e-300},
            "kernels.0.constants.kernel.memory_efficiency: Input should be",
        ),
        ("gemm", {"serial_ns_per_step": 1e308}, "kernels.0.constants.kernel.serial_ns_per_step: Input should be less"),
        ("gemm", {"latency_us": 1.0, "gb_per_s": 1.0}, "kernels.0.constants.collective.floor_us: is not a field"),
        ("collective", {}, "constants of a kernel, for family collective"),
    ],
)
def test_constants_that_no_step_can_be_priced_by_are_refused(
    family: str, constants: dict[str, float], message: str
) -> None:
    errors = {"points": 1, "median_percent": 1.0, "p90_percent": 1.0, "max_percent": 1.0, "bias_percent": 0.0}
    given = {"floor_us": 1.0, "memory_efficiency": 1.0, "compute_efficiency": 1.0, **constants}
    kernel = {"family": family, "key": "bfloat16", "version": "1", "constants": given, "residual": errors}
    texts = ("name", "gpu", "engine", "engine_version", "peaks", "holdout_rule", "selection", "source")
    fields = dict.fromkeys(texts, "test") | {"points_used": 1, "kernels": [kernel], "as_of": "2026-01-01"}
    with pytest.raises(InputError, match=message):
        validate(Calibration, fields, Origin("mine.yaml"))


@pytest.mark.parametrize(
    "given", [{"commitment.devices": 16}, {"commitment.peak_hours_share": "0.5"}, {"spares.zones": 2}]
)
def test_a_flag_moves_no_path_that_it_does_not_give(given: dict[str, Any], tmp_path: Path) -> None:
    """A file's own price list and failure rates stay beside it."""
    for name, text in {
        "contracts.yaml": (ROOT / "examples" / "fleet-cost" / "contracts.yaml").read_text("utf-8"),
        "rates.yaml": (ROOT / "profiles" / "failures" / "llama-3-training.yaml").read_text("utf-8"),
        "asked.yaml": (ROOT / "examples" / "fleet-cost" / "assistant.yaml").read_text("utf-8")
        + "spares: {failures: rates.yaml}\n",
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
    found = load_scenario_file(tmp_path / "asked.yaml", {**given, "workload.objectives.availability": "0.99"})
    assert found.commitment is not None
    assert found.spares.failures is not None
