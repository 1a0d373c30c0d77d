"""What a simulation of the fleet came to, as a report holds it."""

from planner.printable import Printable
from planner.report_base import Part


class Percentiles(Part):
    """Of one time, over requests or over gaps [s]."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class SimulatedPoint(Part):
    """The whole fleet at one time."""

    time_s: float
    running: int
    waiting: int
    kv_used_share: float
    submitted: int
    """Requests that had come by then."""
    done: int


class ScopeHits(Part):
    """What requests of one scope found in the prefix cache."""

    scope: Printable
    """Empty where requests name none."""
    requests: int
    input_tokens: int
    cached_tokens: int
    hit_share: float


class Check(Part):
    """One thing that the formulas take for granted or predict, and what the simulation saw."""

    what: Printable
    planned: Printable
    simulated: Printable
    holds: bool
    text: Printable
    """Why it does not hold, or how far apart the two may be."""


class Simulation(Part):
    """A load replayed on the fleet, to its last token."""

    load: Printable
    load_facts: tuple[Printable, ...]
    """Where the requests come from."""
    seed: int
    replicas: int
    engines: int
    """Data-parallel ranks of all replicas: each schedules and caches by itself."""
    routing: Printable
    span_s: float
    """From the first arrival to the last token."""
    offered_per_s: float | None
    """Requests over the time in which they came; None where that is no time, or answers decide when they come."""
    submitted: int
    completed: int
    too_long: int
    """Refused: longer than the context, or than the whole pool."""
    turned_away: int
    """Refused: the queue was full, or no replica worked."""
    cancelled: int
    """Not ended in time."""
    restarted: int
    """Lost with a node, and sent again."""
    preemptions: int
    ttft_s: Percentiles | None
    """Arrival to first token; None where no request ended."""
    tpot_s: Percentiles | None
    """(end - first token) / (output tokens - 1) of each request; None where none had two tokens."""
    itl_s: Percentiles | None
    """All gaps between tokens, of all requests together."""
    e2e_s: Percentiles | None
    queued_s: Percentiles | None
    """Arrival to first step."""
    percentile_method: Printable
    completed_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float
    """Completed requests that meet every objective, per second."""
    good_share: float | None
    """Of the submitted; None where none was."""
    in_time_share: float | None
    """Of the submitted, those whose first token met ttft_p95_s; None where none was submitted."""
    hit_share: float | None
    """Prompt tokens found in the prefix cache; None where the load says nothing of prefixes."""
    hits: tuple[ScopeHits, ...]
    """By scope, the largest first."""
    running_mean: float
    running_max: int
    waiting_mean: float
    waiting_max: int
    kv_used_mean: float
    kv_used_max: float
    utilisation: float
    """Share of the time in which an engine runs a step."""
    saturated: bool
    saturation: Printable
    """Why it is said to be, or not."""
    node_failures: int
    down_share: float
    """Of all engines' time."""
    checks: tuple[Check, ...]
    met: bool
    """Objectives, and that the queue does not grow without end."""
    misses: tuple[Printable, ...]
    least_replicas: int | None
    """Fewest that do, by simulation; None where it was not looked for, or none of those tried does."""
    verdict: Printable
    series: tuple[SimulatedPoint, ...]
