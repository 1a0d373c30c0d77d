"""What commands that plan a scenario share: their options, and how these become overrides of its fields."""

from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from planner import catalog, documents
from planner.console import hub_cache
from planner.errors import InputError
from planner.inputs import Scenario
from planner.origin import Origin

ScenarioArgument = Annotated[str | None, typer.Argument(help="Scenario file (YAML); flags override it.")]
ModelOption = Annotated[
    str | None,
    typer.Option(help="Shipped name, YAML, config.json, checkpoint directory or Hugging Face id."),
]
WorkloadOption = Annotated[str | None, typer.Option(help="Workload profile: shipped name or YAML.")]
PriceOption = Annotated[
    str | None, typer.Option(help="US dollars per device-hour, or provider/instance[/term] of the price list.")
]
OwnPriceOption = Annotated[
    str | None,
    typer.Option(
        help="US dollars per device-hour, or provider/instance[/term] of the price list, or FILE.yaml with one price, "
        "or FILE.yaml#provider/instance[/term] of a list of one's own."
    ),
]
PricedOnOption = Annotated[
    str | None, typer.Option(help="Day against which prices are dated, YYYY-MM-DD; default: today.")
]
ConcurrencyOption = Annotated[int | None, typer.Option(min=1, help="Requests active at the peak.")]
ArrivalsOption = Annotated[
    str | None, typer.Option(help="Requests that arrive each second at the peak, instead of a number active.")
]
TtftOption = Annotated[str | None, typer.Option(help="95th percentile of the time to first token to meet, in seconds.")]
ItlOption = Annotated[str | None, typer.Option(help="95th percentile of the gaps between tokens to meet, in seconds.")]
AvailabilityOption = Annotated[
    str | None, typer.Option(help="Share of the time that enough replicas must work, such as 0.999; sizes the spares.")
]
CalibrationOption = Annotated[
    str | None, typer.Option(help="Kernel constants: a shipped name or a file of planner calibrate.")
]
BlockTokensOption = Annotated[int | None, typer.Option(min=1, help="Tokens per cache block.")]
GpuMemoryOption = Annotated[str | None, typer.Option(help="Share of device memory that the engine takes.")]
DtypeOption = Annotated[str | None, typer.Option(help="Dtype the model is served in.")]
QuantizationOption = Annotated[str | None, typer.Option(help="Weight quantisation applied while loading.")]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any scenario field: path=value, such as spares.fraction=0.1.")
]

FIELDS = {
    "model": "model",
    "gpu": "accelerator",
    "workload": "workload",
    "engine": "engine",
    "price": "price",
    "priced_on": "priced_on",
    "context": "context_tokens",
    "concurrency": "workload.concurrency",
    "arrivals": "workload.arrivals_per_s",
    "ttft_p95": "workload.objectives.ttft_p95_s",
    "itl_p95": "workload.objectives.itl_p95_s",
    "availability": "workload.objectives.availability",
    "calibration": "calibration",
    "tp": "parallelism.tp",
    "pp": "parallelism.pp",
    "dp": "parallelism.dp",
    "ep": "parallelism.ep",
    "kv_dtype": "kv_cache.dtype",
    "block_tokens": "kv_cache.block_tokens",
    "gpu_memory_utilization": "engine_options.gpu_memory_utilization",
    "max_num_batched_tokens": "engine_options.max_num_batched_tokens",
    "max_num_seqs": "engine_options.max_num_seqs",
    "dtype": "engine_options.dtype",
    "quantization": "engine_options.quantization",
    "kv_cache_bytes": "engine_options.kv_cache_bytes",
}
"""Option -> the scenario's field that it sets."""


def overrides_of(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """Dotted path -> value of the options that were given, and of --set, which comes last."""
    if "price" in options:
        options["price"] = _price(options["price"])
    found = {FIELDS[name]: value for name, value in options.items() if value is not None}
    if options.get("arrivals") is not None and options.get("concurrency") is None:
        found[FIELDS["concurrency"]] = None  # arrivals replace the profile's load, and say how many are active
    return found | _settings(settings or [])


def today() -> date:
    """The day on which a command runs."""
    return datetime.now().astimezone().date()


def dated(scenario: Scenario) -> Scenario:
    """The scenario, its prices held against today where it names no day."""
    return scenario if scenario.priced_on else scenario.model_copy(update={"priced_on": today()})


def loaded(scenario: str | None, overrides: dict[str, Any]) -> Scenario:
    """A scenario by its file or by flags alone, its prices held against today."""
    if scenario is None:
        return dated(catalog.load_scenario({}, Origin("command line"), overrides, hub_cache=hub_cache()))
    return dated(catalog.load_scenario_file(catalog.find_scenario(scenario), overrides, hub_cache()))


def _price(given: str | None) -> str | dict[str, Any] | None:
    """A number means dollars per device-hour; anything else is looked up in the price list."""
    try:
        rate = Decimal(given or "")
    except InvalidOperation:
        return given
    return {"usd_per_hour": rate, "source": "given with --price"}


def _settings(pairs: list[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair}: path=value is needed, such as workload.concurrency=90")
        found[path.strip()] = documents.parse_value(f"--set {path}", value)
    return found
