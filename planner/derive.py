"""How each number came about, with the figures put in, and where the inputs came from."""

from collections.abc import Iterator, Sequence

from planner.calibrate.serving_errors import serving_accuracy
from planner.deployment import Deployment
from planner.derive_cache import cache_lines, capacity_lines, line
from planner.inputs import Failures, Price, Scenario
from planner.latency import Speed
from planner.memory import RankMemory
from planner.money_inputs import ApiPrice
from planner.rank import Rank
from planner.report import Capacity, Derivation, Fleet, KvCache, Need, Source
from planner.units import counted

K_OF_N = "Barlow and Proschan 1975, Statistical Theory of Reliability (k-of-n)"


def derivations(
    deployment: Deployment,
    rank: Rank,
    cache: KvCache,
    capacity: Capacity,
    needs: Sequence[Need],
    fleet: Fleet | None,
) -> tuple[Derivation, ...]:
    """One line for each number of the report but those of speed and money."""
    lines = [
        *_model(deployment),
        *_memory(rank.memory),
        *cache_lines(deployment, rank, cache),
        *capacity_lines(deployment, rank, capacity),
    ]
    if fleet:
        lines += _fleet(deployment, capacity, needs, fleet)
    return tuple(lines)


def sources(scenario: Scenario, speed: Speed | None) -> tuple[Source, ...]:
    """Where model, accelerator, engine, workload, price and kernel constants came from."""
    model, gpu, engine = scenario.model, scenario.accelerator, scenario.engine
    workload = scenario.workload
    return (
        Source(what=f"model {model.name}", source=model.source, as_of=model.as_of, licence=model.licence),
        Source(what=f"accelerator {gpu.name}", source=gpu.source, as_of=gpu.as_of, licence=None),
        Source(what=f"engine {engine.name}", source=engine.source, as_of=engine.as_of, licence=None),
        Source(
            what=f"workload {workload.name}",
            source=workload.source,
            as_of=workload.as_of,
            licence=workload.licence,
        ),
        *([_price_source(scenario.commitment.price)] if scenario.commitment else ()),
        _price_source(scenario.price),
        *([_api_source(scenario.api_price)] if scenario.api_price else ()),
        *(_speed_sources(speed) if speed else ()),
        *(_failure_sources(scenario.spares.failures) if scenario.spares.failures else ()),
    )


def _price_source(price: Price) -> Source:
    return Source(what=f"price, {price.label}", source=price.source, as_of=price.as_of, licence=price.licence)


def _api_source(price: ApiPrice) -> Source:
    return Source(what=f"API price, {price.label}", source=price.source, as_of=price.as_of, licence=price.licence)


def _failure_sources(failures: Failures) -> Iterator[Source]:
    what = f"failures{f' {failures.name}' if failures.name else ''}"
    yield Source(what=what, source=failures.source, as_of=failures.as_of, licence=None)


def _speed_sources(speed: Speed) -> Iterator[Source]:
    constants, accuracy = speed.replica.times.first, serving_accuracy()
    yield Source(
        what=f"calibration {constants.name}",
        source=constants.source,
        as_of=constants.as_of,
        licence=constants.licence,
    )
    yield Source(what="ranges of speed", source=accuracy.source, as_of=accuracy.as_of, licence=accuracy.licence)


def _model(deployment: Deployment) -> Iterator[Derivation]:
    stack, config = deployment.stack, deployment.scenario.model
    text = f"{stack.parameters:,} numbers in all weights of {config.name}"
    yield line("model.parameters", text, "config", config.source)
    text = f"{stack.active_parameters:,} of them used for one token, embedding tables counted whole"
    yield line("model.active_parameters", text, "config", config.source)


def _memory(memory: RankMemory) -> Iterator[Derivation]:
    device = memory.device
    yield line("memory.device_bytes", f"{device.text} = {device.bytes:,} B", device.basis, device.source)
    weights = memory.weights
    yield line("memory.weights_bytes", f"{weights.text} = {weights.bytes:,} B", weights.basis, weights.source)
    parts = " + ".join(f"{term.bytes:,} B {term.name} ({term.text})" for term in memory.workspace) or "0 B"
    basis = memory.workspace[0].basis if memory.workspace else "computed"
    source = memory.workspace[0].source if memory.workspace else ""
    yield line("memory.workspace_bytes", parts, basis, source)
    reserve = memory.reserve
    yield line("memory.reserve_bytes", f"{reserve.text} = {reserve.bytes:,} B", reserve.basis, reserve.source)
    budget = memory.kv_budget
    text = (
        f"{device.bytes:,} - {weights.bytes:,} weights - {memory.workspace_bytes:,} workspace - "
        f"{reserve.bytes:,} reserve = {budget.bytes:,} B"
        if budget.basis == "computed"
        else f"{budget.text} = {budget.bytes:,} B"
    )
    yield line("memory.kv_budget_bytes", text, budget.basis)


def _fleet(deployment: Deployment, capacity: Capacity, needs: Sequence[Need], fleet: Fleet) -> Iterator[Derivation]:
    scenario = deployment.scenario
    yield line("fleet.active_replicas", f"{_largest(scenario, capacity, needs)} = {fleet.active_replicas:,}")
    rules = [f"{rule.replicas or 0:,} [{rule.limit}: {rule.text}]" for rule in fleet.spare_rules]
    basis = "given" if fleet.spare_rules[0].limit == "given" and len(rules) == 1 else "computed"
    if len(rules) == 1 and fleet.spare_rules[0].limit in ("given", "fraction"):
        rules = [fleet.spare_rules[0].text]
    text = f"max({', '.join(rules)})" if len(rules) > 1 else rules[0]
    source = K_OF_N if scenario.spares.by_availability else ""
    yield line("fleet.spare_replicas", f"{text} = {fleet.spare_replicas:,}", basis, source)
    text = f"({fleet.active_replicas:,} + {fleet.spare_replicas:,}) replicas x {fleet.devices_per_replica}"
    yield line("fleet.devices", f"{text} = {fleet.devices:,}")
    if fleet.committed_devices:
        text = f"{fleet.committed_devices:,} committed + {fleet.billed_devices - fleet.committed_devices:,} beyond"
        yield line("fleet.billed_devices", f"{text} = {fleet.billed_devices:,}", "computed", scenario.price.source)
    elif fleet.nodes is not None:
        text = f"{counted(fleet.nodes, 'instance')} x {scenario.price.devices} = {fleet.billed_devices:,}"
        yield line("fleet.billed_devices", text, "computed", scenario.price.source)


def _largest(scenario: Scenario, capacity: Capacity, needs: Sequence[Need]) -> str:
    """The largest need; what holds the active requests with its division, where their number is given."""
    terms = [f"{need.replicas:,} [{need.limit}]" for need in needs]
    if scenario.arrivals_per_s is None:
        active = f"{scenario.workload.concurrency:,} active requests / {capacity.slots_per_replica:,}"
        terms[0] = f"ceil({active}) [{needs[0].limit}]"
    return f"max({', '.join(terms)})" if len(terms) > 1 else terms[0]
