"""The result of a search: every choice tried, as a candidate with its figures or rejected with its reason."""

from decimal import Decimal
from typing import Literal

from planner.printable import Printable
from planner.report import Range
from planner.report_base import Part
from planner.report_mix import MixPlan


class Choice(Part):
    """One combination, with the engine's defaults filled in where it could be planned."""

    accelerator: Printable
    engine: Printable
    tp: int
    pp: int
    dp: int
    ep: int
    kv_dtype: Printable
    max_num_batched_tokens: int | None
    """None: the engine's default, or no such limit."""
    max_num_seqs: int | None
    """None: the engine's default, or no such limit."""


class Candidate(Part):
    """A deployment that serves the load within its objectives."""

    choice: Choice
    pareto: bool
    """No other candidate is at most as dear and as slow, and better in one of monthly cost, TPOT and p95 TTFT."""
    active_replicas: int
    spare_replicas: int
    devices: int
    billed_devices: int
    usd_per_device_hour: Decimal
    price: Printable
    monthly_usd: Decimal
    per_1000_successful_usd: Decimal | None
    """None where the workload does not say how many requests a month has."""
    tpot_s: Range | None
    """This and the times below are None where speed is not predicted: memory alone then sizes the fleet."""
    ttft_p95_s: Range | None
    itl_p95_s: Range | None
    utilisation: float | None
    """Load over what the fleet can do."""
    binding_limit: Printable
    binding_reason: Printable
    calibration: Printable | None
    """Kernel constants that price its steps."""
    stood_in: bool
    """They were measured on another device."""


class Rejected(Part):
    """A choice that does not serve the load, or is refused."""

    choice: Choice
    limit: Printable
    """What it fails by: kv_memory, device_memory, an objective, or the field that is refused."""
    reason: Printable
    refused: bool
    """Its parts do not go together, so nothing was planned."""


class SearchFacts(Part):
    """What every choice must serve."""

    title: Printable
    model: Printable
    workload: Printable
    context_tokens: int
    concurrency: int | None
    arrivals_per_s: Decimal | None
    ttft_p95_limit_s: Decimal | None
    itl_p95_limit_s: Decimal | None
    success_share_limit: Decimal | None
    availability_limit: Decimal | None
    requests_per_month: int | None
    hours_per_month: Decimal


class SpaceFacts(Part):
    """What was tried: every combination of these."""

    accelerators: tuple[Printable, ...]
    engines: tuple[Printable, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    ep: tuple[int, ...] | None
    """None: 1, and for models with experts tp x dp too."""
    kv_dtypes: tuple[Printable, ...]
    max_num_batched_tokens: tuple[int | None, ...]
    max_num_seqs: tuple[int | None, ...]


class SearchWorld(Part):
    """One combination of low, mid and high values of what is uncertain, over all months of growth."""

    values: tuple[Printable, ...]
    """path=value of each; none where only growth is given."""
    weight: float
    """Its probability."""
    least_usd: Decimal | None
    """Of the candidate that is cheapest in it, all months together; None where no candidate serves it."""
    unserved: Printable | None
    """Why the cheapest as given does not serve it, where no candidate does."""


class Regretted(Part):
    """What a candidate costs over the worlds, resized every month, and how much one regrets to have chosen it."""

    choice: Choice
    by_world_usd: tuple[Decimal | None, ...]
    """All months together; None where it does not serve every month."""
    mean_usd: Decimal | None
    """Over the worlds that it serves, by probability."""
    most_over_usd: Decimal | None
    """The most by which it exceeds the cheapest of a world."""
    regret: float
    """Mean by probability over the worlds that it serves [USD^1.2]."""
    unserved_share: float
    """Probability of the worlds that it does not serve and another candidate does."""


class SearchDemand(Part):
    """Every candidate over the months of a growing load and the worlds of an uncertain one."""

    months: int
    worlds: tuple[SearchWorld, ...]
    infeasible_share: float
    """Probability of the worlds that no candidate serves."""
    regretted: tuple[Regretted, ...]
    """By unserved_share, then regret, the least first: the first is the search's pick."""


class SearchResult(Part):
    """One search."""

    kind: Literal["planner search"] = "planner search"
    schema_version: Literal[3] = 3
    planner_version: Printable
    inputs_digest: Printable
    scenario: SearchFacts
    space: SpaceFacts
    tried: int
    """Combinations: those of candidates, rejected and merged."""
    merged: int
    """Combinations that came to the same deployment as one before them, and are listed once."""
    candidates: tuple[Candidate, ...]
    """Cheapest first, then by devices and p95 TTFT."""
    rejected: tuple[Rejected, ...]
    """In the order tried."""
    mix: MixPlan | None
    """The cheapest fleet of several types; None where none was asked for."""
    demand: SearchDemand | None = None
    """None where the scenario gives neither growth nor anything uncertain, or no choice serves the load as given."""
    assumptions: tuple[Printable, ...]
    """What holds for every candidate."""
    warnings: tuple[Printable, ...]
