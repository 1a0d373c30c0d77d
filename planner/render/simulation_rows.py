"""The rows that say what a simulation saw."""

from planner.render.row import Row

_SEEN = "simulated"
_LOAD = ("simulation.replicas", "simulation.offered_per_s", "simulation.load")


def _time(label: str, name: str, *parts: str) -> tuple[Row, ...]:
    """A row for each percentile of a time."""
    return tuple(
        Row(_SEEN, f"{label}, {part}", f"simulation.{name}.{part}", "seconds", _LOAD, optional=True) for part in parts
    )


SIMULATION_ROWS = (
    Row(_SEEN, "load", "simulation.load", "text", optional=True),
    Row(_SEEN, "replicas", "simulation.replicas", "count", ("fleet.active_replicas",), optional=True),
    Row(_SEEN, "routing", "simulation.routing", "text", optional=True),
    Row(_SEEN, "requests/s, offered", "simulation.offered_per_s", "number", ("simulation.load",), optional=True),
    Row(_SEEN, "requests/s, completed", "simulation.completed_per_s", "number", _LOAD, optional=True),
    Row(_SEEN, "requests/s within objectives", "simulation.goodput_per_s", "number", _LOAD, optional=True),
    Row(_SEEN, "output tokens/s", "simulation.output_tokens_per_s", "number", _LOAD, optional=True),
    Row(_SEEN, "requests completed", "simulation.completed", "count", _LOAD, optional=True),
    Row(_SEEN, "refused as too long", "simulation.too_long", "count", _LOAD, optional=True, plain=0),
    Row(_SEEN, "turned away", "simulation.turned_away", "count", _LOAD, optional=True, plain=0),
    Row(_SEEN, "cancelled", "simulation.cancelled", "count", _LOAD, optional=True, plain=0),
    Row(_SEEN, "node failures", "simulation.node_failures", "count", (), optional=True, plain=0),
    Row(_SEEN, "sent again", "simulation.restarted", "count", ("simulation.node_failures",), optional=True, plain=0),
    *_time("TTFT", "ttft_s", "mean", "p50", "p90", "p95", "p99"),
    *_time("TPOT", "tpot_s", "mean", "p50", "p90", "p95", "p99"),
    *_time("gap between tokens", "itl_s", "p50", "p90", "p95", "p99"),
    *_time("whole request", "e2e_s", "mean", "p50", "p90", "p95", "p99"),
    *_time("wait for the first step", "queued_s", "p95"),
    Row(_SEEN, "running, mean", "simulation.running_mean", "number", _LOAD, optional=True),
    Row(_SEEN, "waiting, mean", "simulation.waiting_mean", "number", _LOAD, optional=True),
    Row(_SEEN, "waiting, most", "simulation.waiting_max", "count", _LOAD, optional=True),
    Row(_SEEN, "KV cache in use, mean", "simulation.kv_used_mean", "share", _LOAD, optional=True),
    Row(_SEEN, "KV cache in use, most", "simulation.kv_used_max", "share", _LOAD, optional=True),
    Row(_SEEN, "preemptions", "simulation.preemptions", "count", _LOAD, optional=True),
    Row(_SEEN, "prompt tokens found cached", "simulation.hit_share", "share", _LOAD, optional=True),
    Row(_SEEN, "time in steps", "simulation.utilisation", "share", _LOAD, optional=True),
    Row(_SEEN, "least replicas that are enough", "simulation.least_replicas", "count", _LOAD, optional=True),
)
