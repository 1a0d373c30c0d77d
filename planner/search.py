"""Which deployment serves a load cheapest: every choice of a space planned, ranked, or rejected with its reason.

    from planner.search import search
    result = search(scenario, space, jobs=4)

With jobs=None, joblib.parallel_config decides how many workers there are and where: this machine, Ray or Dask.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

from planner import __version__
from planner.architectures import resolve
from planner.errors import InputError
from planner.inputs import Scenario
from planner.mix import plan_mix
from planner.mix_solver import check_solver
from planner.regrets import Horizon, check_demand, horizon_of, search_demand
from planner.report import Cost, Fleet, Report
from planner.report_mix import MixPlan
from planner.search_report import Candidate, Choice, Rejected, SearchFacts, SearchResult, SpaceFacts
from planner.space import Space, Trial
from planner.tenants import plan_tenants
from planner.tensors import EXPERT_SPLITS
from planner.workers import each_done

MOST_MIXED = 200
"""Choices of which a mix may be made."""
BATCH = 16
"""Choices that a worker plans at once."""
BATCHES_PER_ROUND = 8
"""Of each worker, between two reports of progress."""
SERVES = {"vllm": ("nvidia", "amd"), "sglang": ("nvidia", "amd"), "tensorrt-llm": ("nvidia",)}
"""Kind of an engine profile -> vendors whose devices its rules are of; the plain formula is of any."""
TRIED = ("parallelism", "price")
"""Fields that a search itself fills in: where it finds none that goes, that is its answer and no bad input."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What choices came to, and what the reports of all its candidates say."""

    outcomes: tuple[Candidate | Rejected, ...]
    assumptions: tuple[str, ...] | None
    """None: no candidate said any."""
    warnings: tuple[str, ...] | None
    horizons: tuple[tuple[Choice, Horizon], ...]
    """What its candidates cost by world; empty where demand neither grows nor is uncertain."""


def search(
    scenario: Scenario,
    space: Space,
    *,
    jobs: int | None = 1,
    mix: bool = False,
    step: Callable[[int, int], None] = lambda _done, _of: None,
) -> SearchResult:
    """Every choice of a space planned for a scenario, whose own values of what the space varies do not count.

    jobs: workers; 1: this process alone; None: as joblib.parallel_config says
    mix: also look for the cheapest fleet of several choices, each for some sizes of requests (mix.plan_mix);
        none is where no choice serves the load
    step: told how many choices are done, of how many
    raises: InputError where the space is too large, or every choice is refused for a reason that none can change
    """
    _check_figures_hold(scenario, space)
    if mix:
        check_solver()
    trials = tuple(space.trials(experts=_has_experts(scenario)))
    check_demand(scenario, len(trials), one_price=len(space.offers) == 1 and space.offers[0].price is not None)
    planned = []
    batches = [trials[i : i + BATCH] for i in range(0, len(trials), BATCH)]
    for each in each_done(partial(_plan, scenario), batches, jobs, BATCHES_PER_ROUND):
        planned.append(each)
        step(min(BATCH * len(planned), len(trials)), len(trials))
    outcomes = tuple(dict.fromkeys(chain.from_iterable(each.outcomes for each in planned)))
    _check_not_one_reason(outcomes)
    candidates = ranked(each for each in outcomes if isinstance(each, Candidate))
    horizons = dict(chain.from_iterable(each.horizons for each in planned))
    return SearchResult(
        planner_version=__version__,
        inputs_digest=_digest(scenario, space),
        scenario=_facts(scenario),
        space=_space_facts(space),
        tried=len(trials),
        merged=len(trials) - len(outcomes),
        candidates=candidates,
        rejected=tuple(each for each in outcomes if isinstance(each, Rejected)),
        mix=_mix(scenario, trials) if mix and candidates else None,
        demand=search_demand(scenario, {each.choice: horizons[each.choice] for each in candidates})
        if horizons
        else None,
        assumptions=(*_price_assumption(space), *_in_all(each.assumptions for each in planned)),
        warnings=_in_all(each.warnings for each in planned),
    )


def _mix(scenario: Scenario, trials: Sequence[Trial]) -> MixPlan:
    if len(trials) > MOST_MIXED:
        raise InputError(f"--mix: {len(trials):,} choices are tried, and a mix is of at most {MOST_MIXED}: give fewer")
    scenarios = []
    for trial in trials:
        with suppress(InputError):  # a choice that is refused is no part of a mix, and listed as rejected
            scenarios.append(_scenario_of(scenario, trial))
    return plan_mix(scenarios)


def _has_experts(scenario: Scenario) -> bool:
    stack = resolve(scenario.model.config, scenario.model.origin)
    return any(tensor.split in EXPERT_SPLITS for _, tensor in stack.tensors())


def ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Cheapest first, then by devices and p95 TTFT, with the Pareto front marked."""
    found = sorted(candidates, key=_rank)
    front = _front(found)
    return tuple(each.model_copy(update={"pareto": i in front}) for i, each in enumerate(found))


def _rank(candidate: Candidate) -> tuple[object, ...]:
    ttft = candidate.ttft_p95_s
    return candidate.monthly_usd, candidate.devices, ttft is None, ttft.best if ttft else 0.0


def _front(candidates: Sequence[Candidate]) -> set[int]:
    """Which are on the Pareto front of monthly cost, TPOT and p95 TTFT; without predicted times, none is."""
    points = sorted(
        (each.monthly_usd, each.tpot_s.best, each.ttft_p95_s.best, i)
        for i, each in enumerate(candidates)
        if each.tpot_s and each.ttft_p95_s
    )
    front: list[tuple[object, float, float, int]] = []
    for usd, tpot, ttft, i in points:  # whatever is better comes earlier
        better = (t <= tpot and f <= ttft and (u, t, f) != (usd, tpot, ttft) for u, t, f, _ in front)
        if not any(better):
            front.append((usd, tpot, ttft, i))
    return {i for *_, i in front}


def _plan(scenario: Scenario, trials: Sequence[Trial]) -> _Planned:
    outcomes, assumptions, warnings = [], [], []
    horizons: dict[Choice, Horizon] = {}
    for trial in trials:
        outcome, report = _outcome(scenario, trial)
        outcomes.append(outcome)
        if report and isinstance(outcome, Candidate):
            assumptions.append(report.assumptions)
            warnings.append(report.warnings)
            if outcome.choice not in horizons and (found := horizon_of(_scenario_of(scenario, trial))):
                horizons[outcome.choice] = found
    if not assumptions:
        return _Planned(tuple(outcomes), None, None, ())
    return _Planned(tuple(outcomes), _in_all(assumptions), _in_all(warnings), tuple(horizons.items()))


def _in_all(remarks: Iterable[tuple[str, ...] | None]) -> tuple[str, ...]:
    """Remarks that every one of several has, in the order of the first."""
    said = [each for each in remarks if each is not None]
    rest = [frozenset(each) for each in said[1:]]
    return tuple(remark for remark in (said[0] if said else ()) if all(remark in each for each in rest))


def _outcome(scenario: Scenario, trial: Trial) -> tuple[Candidate | Rejected, Report | None]:
    try:
        report = plan_tenants(_scenario_of(scenario, trial))
    except InputError as error:
        return _refused(trial, error), None
    if report.fleet is None or report.cost is None or not report.meets_objectives:
        reason = Rejected(
            choice=_resolved(report), limit=report.binding_limit, reason=report.binding_reason, refused=False
        )
        return reason, report
    return _candidate(report, report.fleet, report.cost), report


def _scenario_of(scenario: Scenario, trial: Trial) -> Scenario:
    """The scenario with one combination put in.

    raises: InputError where the device has no price, or the engine's rules are not of it
    """
    gpu, engine, ranks = trial.offer.accelerator, trial.engine, trial.parallelism
    price = trial.offer.price_of(ranks.tp * ranks.dp)
    vendors = SERVES.get(engine.kind, (gpu.vendor,))
    if gpu.vendor not in vendors:
        raise InputError(f"engine: the rules of {engine.name} are of {' and '.join(vendors)} devices, not {gpu.vendor}")
    limits = {"max_num_batched_tokens": trial.max_num_batched_tokens, "max_num_seqs": trial.max_num_seqs}
    return scenario.model_copy(
        update={
            "accelerator": gpu,
            "engine": engine,
            "parallelism": ranks,
            "kv_cache": scenario.kv_cache.model_copy(update={"dtype": trial.kv_dtype}),
            "engine_options": scenario.engine_options.model_copy(update=limits),
            "price": price,
        }
    )


def _candidate(report: Report, fleet: Fleet, cost: Cost) -> Candidate:
    latency = report.latency
    calibration = latency.calibration if latency else None
    return Candidate(
        choice=_resolved(report),
        pareto=False,
        active_replicas=fleet.active_replicas,
        spare_replicas=fleet.spare_replicas,
        devices=fleet.devices,
        billed_devices=fleet.billed_devices,
        usd_per_device_hour=report.scenario.usd_per_device_hour,
        price=report.scenario.price,
        monthly_usd=cost.monthly_usd,
        per_1000_successful_usd=cost.per_1000_successful_usd,
        tpot_s=latency.tpot_s if latency else None,
        ttft_p95_s=latency.ttft_p95_s if latency else None,
        itl_p95_s=latency.itl_p95_s if latency else None,
        utilisation=latency.utilisation if latency else None,
        binding_limit=report.binding_limit,
        binding_reason=report.binding_reason,
        calibration=calibration,
        stood_in=calibration is not None and calibration.endswith(" peaks"),
    )


def _resolved(report: Report) -> Choice:
    """The choice as it was planned, whatever of it was left to the engine: equal deployments have equal ones."""
    facts, capacity = report.scenario, report.capacity
    return Choice(
        accelerator=facts.accelerator,
        engine=facts.engine,
        tp=facts.tp,
        pp=facts.pp,
        dp=facts.dp,
        ep=facts.ep,
        kv_dtype=report.kv_cache.dtype,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        max_num_seqs=capacity.max_num_seqs,
    )


def _refused(trial: Trial, error: InputError) -> Rejected:
    choice = Choice(
        accelerator=trial.offer.accelerator.name,
        engine=trial.engine.name,
        **trial.parallelism.model_dump(),
        kv_dtype=trial.kv_dtype,
        max_num_batched_tokens=trial.max_num_batched_tokens,
        max_num_seqs=trial.max_num_seqs,
    )
    problems = [_split(problem) for problem in error.problems]
    limit = problems[0][0]
    text = "; ".join(text if field == limit else f"{field}: {text}" for field, text in problems)
    return Rejected(choice=choice, limit=limit, reason=text, refused=True)


def _split(problem: str) -> tuple[str, str]:
    """(the field that a problem is of, the problem)."""
    found = re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)*): (.*)", problem, re.DOTALL)
    if found:
        return found[1], found[2]
    return "engine" if problem.startswith("engine ") else "input", problem


def _check_figures_hold(scenario: Scenario, space: Space) -> None:
    """Refuse memory that is given for one deployment where several are tried."""
    several = any(len(set(values)) > 1 for values in (space.tp, space.pp, space.dp)) or len(space.offers) > 1
    given = {
        "memory.device_gib": scenario.memory.device_gib if len(space.offers) > 1 else None,
        "memory.weights_gib": scenario.memory.weights_gib if several else None,
        "engine_options.kv_cache_bytes": scenario.engine_options.kv_cache_bytes if several else None,
    }
    found = [field for field, value in given.items() if value is not None]
    if found:
        raise InputError(*(f"{field}: is one deployment's figure, and several are tried" for field in found))


def _check_not_one_reason(outcomes: Sequence[Candidate | Rejected]) -> None:
    """Bad input is an error and no result: every choice refused for the same reason, and that not one of TRIED."""
    reasons = {(each.limit, each.reason) if isinstance(each, Rejected) and each.refused else None for each in outcomes}
    if len(reasons) != 1 or None in reasons:
        return
    for limit, reason in filter(None, reasons):
        if limit not in TRIED:
            raise InputError(reason if limit in ("input", "engine") else f"{limit}: {reason}")


def _digest(scenario: Scenario, space: Space) -> str:
    fixed = scenario.model_dump_json(exclude={"accelerator", "engine", "parallelism", "price"})
    return "sha256:" + hashlib.sha256(f"{fixed}\n{space.model_dump_json()}".encode()).hexdigest()


def _facts(scenario: Scenario) -> SearchFacts:
    workload, objectives = scenario.workload, scenario.workload.objectives
    return SearchFacts(
        title=scenario.title or f"{scenario.model.name} for {workload.name}",
        model=scenario.model.name,
        workload=workload.name,
        context_tokens=scenario.context,
        concurrency=workload.concurrency,
        arrivals_per_s=scenario.arrivals_per_s,
        ttft_p95_limit_s=objectives.ttft_p95_s,
        itl_p95_limit_s=objectives.itl_p95_s,
        success_share_limit=objectives.success_share,
        availability_limit=objectives.availability,
        requests_per_month=workload.requests_per_month,
        hours_per_month=scenario.hours_per_month,
    )


def _space_facts(space: Space) -> SpaceFacts:
    return SpaceFacts(
        accelerators=tuple(offer.accelerator.name for offer in space.offers),
        engines=tuple(engine.name for engine in space.engines),
        **space.model_dump(exclude={"offers", "engines"}),
    )


def _price_assumption(space: Space) -> tuple[str, ...]:
    if all(offer.price is not None or not offer.listed for offer in space.offers):
        return ()
    return (
        "each device at the lowest dated on-demand price listed of an instance that holds a replica's tensor and data "
        "parallel ranks; --price chooses another",
    )
