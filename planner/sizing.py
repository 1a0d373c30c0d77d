"""How many replicas: each limit's need, the largest of which is the fleet's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, inf

from planner.errors import InputError
from planner.fleet import active_replicas
from planner.inputs import Scenario
from planner.latency import Performance, Speed
from planner.objectives import Objective, objectives_of
from planner.queueing import burstiness_of_part, concurrency_quantile
from planner.report import Capacity, Need
from planner.units import ceil_div, counted, show_number
from planner.workload_inputs import Workload

CONCURRENCY_PERCENTILE = 0.99
"""Of the number of requests active at once: what memory must hold where only arrivals are given."""
SLOT_WAIT_SHARE = 0.05
"""Most requests that may have to wait for a slot: the throughput need of arrivals."""
MOST_REPLICAS = 2**20
TOO_MANY = f"workload: even {MOST_REPLICAS:,} replicas do not serve this load"


@dataclass(frozen=True, slots=True)
class Sizing:
    """The needs, and the load that the fleet of the largest of them serves."""

    needs: tuple[Need, ...]
    concurrency: int | None
    """Requests that are active at once: given, or their 99th percentile; None where neither is known."""
    performance: Performance | None
    """Of one replica; None where no speed is predicted. Of an idle replica where some need cannot be met."""

    @property
    def replicas(self) -> int | None:
        """Active replicas; None where some need cannot be met, or nothing is sized."""
        counts = [need.replicas for need in self.needs if need.replicas is not None]
        return max(counts) if counts and len(counts) == len(self.needs) else None

    @property
    def binding(self) -> Need:
        """The largest need, the first of equal ones; before all one that cannot be met."""
        return max(self.needs, key=lambda need: inf if need.replicas is None else need.replicas)


def size(scenario: Scenario, capacity: Capacity, speed: Speed | None) -> Sizing:
    """What each limit needs of this deployment.

    speed: of one replica; None: only memory sizes the fleet
    raises: InputError where the load needs more replicas than planner counts
    """
    active = scenario.workload.concurrency or 0
    if speed is None:
        found = Sizing((_held(capacity, active),), active, None)
    elif scenario.arrivals_per_s is not None:
        found = _sized(_Arriving(scenario, capacity, speed, float(scenario.arrivals_per_s)))
    else:
        found = _sized(_Active(scenario, capacity, speed, active))
    if found.replicas is not None and found.replicas > MOST_REPLICAS:
        raise InputError(TOO_MANY)
    return found


def held_by(capacity: Capacity) -> str:
    """What limits the requests of one replica: the scheduler or memory."""
    return "max_num_seqs" if capacity.slots_per_replica < capacity.requests_per_replica else "kv_memory"


def _held(capacity: Capacity, active: int, text: str = "are active", replicas: int | None = None) -> Need:
    """What memory and the scheduler need; without a number of replicas, as many as the active requests fill."""
    slots = capacity.slots_per_replica
    if held_by(capacity) == "kv_memory":
        holds = f"KV memory holds {counted(slots, 'request')} per replica"
    else:
        memory = f"memory would hold {capacity.requests_per_replica:,}"
        holds = f"the scheduler runs {counted(slots, 'request')} per replica, where {memory},"
    needed = active_replicas(active, slots) if replicas is None else replicas
    return Need(limit=held_by(capacity), replicas=needed, text=f"{holds} and {active:,} {text}")


def active_at_most(workload: Workload, mean: float) -> int:
    """Requests active at once, 99 % of the time, where so many are on average."""
    return concurrency_quantile(mean, CONCURRENCY_PERCENTILE, float(workload.burstiness))


def arriving_at(speed: Speed, scenario: Scenario, replicas: int) -> Performance:
    """One of so many replicas, each with an equal share of what arrives.

    raises: ValueError where the scenario has no arrivals
    """
    if scenario.arrivals_per_s is None:
        raise ValueError("the scenario has no arrivals_per_s")
    bursts = burstiness_of_part(float(scenario.workload.burstiness), replicas)
    return speed.arriving(float(scenario.arrivals_per_s) / replicas, bursts)


def active_in(workload: Workload, at: Performance, replicas: int) -> int:
    """Requests active at once in so many replicas: as many as given, or the 99th percentile of what arrivals keep."""
    return max(workload.concurrency or 0, active_at_most(workload, replicas * at.concurrency))


class _Active:
    """A number of requests that are active all the time, spread evenly."""

    overload = "not all find a slot"

    def __init__(self, scenario: Scenario, capacity: Capacity, speed: Speed, requests: int) -> None:
        self.scenario, self.capacity, self.speed, self.requests = scenario, capacity, speed, requests
        self.at = cache(lambda replicas: speed.active(ceil_div(requests, replicas)))

    @cached_property
    def idle(self) -> Performance:
        """A replica with one request."""
        return self.speed.active(1)

    def active(self, _replicas: int) -> int:
        """Requests active at once."""
        return self.requests

    def needs(self) -> list[Need]:
        """Of memory, and of the month's requests at an even rate: the least that must be done."""
        held = _held(self.capacity, self.requests)
        month = self.scenario.workload.requests_per_month
        if month is None:
            return [held]
        rate = month / (float(self.scenario.hours_per_month) * 3600)
        each = self.speed.saturated_tokens_per_s / self.speed.mix.output_tokens
        text = (
            f"{month:,} requests a month are {show_number(rate)} a second on average, and a replica with every slot in "
            f"use does {show_number(each)}"
        )
        return [held, Need(limit="throughput", replicas=max(1, ceil(rate / each)), text=text)]


class _Arriving:
    """Requests that arrive at a rate, each replica taking an equal share."""

    overload = "the queue grows without end"

    def __init__(self, scenario: Scenario, capacity: Capacity, speed: Speed, per_s: float) -> None:
        self.scenario, self.capacity, self.speed, self.per_s = scenario, capacity, speed, per_s
        self.at = cache(lambda replicas: arriving_at(speed, scenario, replicas))

    @cached_property
    def idle(self) -> Performance:
        """A replica at which next to nothing arrives."""
        return self.at(MOST_REPLICAS)

    def active(self, replicas: int) -> int:
        """Requests active at once."""
        return active_in(self.scenario.workload, self.at(replicas), replicas)

    def needs(self) -> list[Need]:
        """Of memory, and of the arrivals themselves."""
        at, slots = self.at, self.capacity.slots_per_replica
        count = least(lambda k: not at(k).saturated and self.active(k) <= k * slots)
        held = _held(self.capacity, self.active(count), self._active_text(count), count)
        count = least(lambda k: not at(k).saturated and at(k).slot_wait.probability <= SLOT_WAIT_SHARE)
        each = self.speed.saturated_tokens_per_s / self.speed.mix.output_tokens
        text = (
            f"{show_number(self.per_s)} requests a second arrive, and a replica with every slot in use does "
            f"{show_number(each)}; with {counted(count, 'replica')} {at(count).slot_wait.probability:.1%} of them wait "
            f"for a slot, and at most {SLOT_WAIT_SHARE:.0%} may"
        )
        return [held, Need(limit="throughput", replicas=count, text=text)]

    def _active_text(self, replicas: int) -> str:
        if self.active(replicas) == self.scenario.workload.concurrency:
            return "are active"
        text = f"are active at most, 99 % of the time, with {counted(replicas, 'replica')}"
        if replicas == 1:
            return text
        fewer = self.overload if self.at(replicas - 1).saturated else f"it is {self.active(replicas - 1):,}"
        return f"{text}; with {replicas - 1:,} {fewer}"


def _sized(load: _Active | _Arriving) -> Sizing:
    objectives = objectives_of(load.scenario, load.speed)
    needs = (*load.needs(), *(_need(objective, load) for objective in objectives))
    replicas = Sizing(needs, None, None).replicas
    if replicas is None:
        met = max(need.replicas for need in needs if need.replicas is not None)
        return Sizing(needs, load.active(met), load.idle)
    return Sizing(needs, load.active(replicas), load.at(replicas))


def _need(objective: Objective, load: _Active | _Arriving) -> Need:
    if not objective.met(load.idle):
        idle = f"{objective.what} is {objective.shown(load.idle)} even alone in a replica; {objective.asked}"
        reason = objective.alone or idle
        return Need(limit=objective.name, replicas=None, text=reason)
    count = least(lambda replicas: not load.at(replicas).saturated and objective.met(load.at(replicas)))
    text = f"{objective.what} is {objective.shown(load.at(count))} with {counted(count, 'replica')}"
    if count > 1:
        fewer = load.at(count - 1)
        text += f"; with {count - 1:,} {load.overload if fewer.saturated else objective.shown(fewer)}"
    return Need(limit=objective.name, replicas=count, text=f"{text}; {objective.asked}")


def least(enough: Callable[[int], bool]) -> int:
    """The least number of replicas that is enough: by doubling, then bisection.

    raises: InputError where more than MOST_REPLICAS would be needed
    """
    low, high = 0, 1
    while not enough(high):
        if high >= MOST_REPLICAS:
            raise InputError(TOO_MANY)
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
