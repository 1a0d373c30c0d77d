"""The rows that say how fast one replica is."""

from planner.render.row import Row

_SPEED = "speed of one replica"
_LOAD = ("scenario.concurrency", "scenario.arrivals_per_s", "fleet.active_replicas")
_LENGTHS = ("latency.input_tokens", "latency.output_tokens", "latency.cached_tokens")
_HARDWARE = (
    "scenario.model",
    "scenario.accelerator",
    "scenario.engine",
    "scenario.tp",
    "scenario.pp",
    "scenario.dp",
    "scenario.ep",
)

SPEED_ROWS = (
    Row(_SPEED, "requests decoding together", "latency.batch", "count", _LOAD, optional=True),
    Row(
        _SPEED,
        "decode step",
        "latency.step.seconds",
        "seconds",
        (*_HARDWARE, *_LENGTHS, "latency.batch"),
        optional=True,
    ),
    Row(_SPEED, "longest part of it", "latency.step.binds", "text", (*_HARDWARE, "latency.batch"), optional=True),
    Row(
        _SPEED,
        "TPOT, mean",
        "latency.tpot_s",
        "range",
        ("latency.step.seconds", *_LENGTHS, "latency.batch"),
        optional=True,
    ),
    Row(
        _SPEED,
        "gap between tokens, p95",
        "latency.itl_p95_s",
        "range",
        ("latency.step.seconds", "latency.batch"),
        optional=True,
    ),
    Row(_SPEED, "TTFT, mean", "latency.ttft_mean_s", "range", (*_HARDWARE, *_LENGTHS, "latency.batch"), optional=True),
    Row(
        _SPEED,
        "TTFT, p95",
        "latency.ttft_p95_s",
        "range",
        ("latency.longest_prefill_s", *_LENGTHS, "latency.batch"),
        optional=True,
    ),
    Row(
        _SPEED,
        "prefill, longest prompt",
        "latency.longest_prefill_s",
        "seconds",
        (*_HARDWARE, "scenario.context_tokens"),
        optional=True,
    ),
    Row(
        _SPEED,
        "whole request, mean",
        "latency.request_s",
        "range",
        ("latency.ttft_mean_s", "latency.tpot_s"),
        optional=True,
    ),
    Row(
        _SPEED,
        "output tokens/s at most",
        "latency.saturated_tokens_per_s",
        "rates",
        (*_HARDWARE, *_LENGTHS, "capacity.max_num_seqs"),
        optional=True,
    ),
    Row(
        _SPEED,
        "requests/s, whole fleet",
        "latency.arrivals_per_s",
        "number",
        ("scenario.concurrency", "latency.request_s"),
        optional=True,
    ),
    Row(
        _SPEED,
        "utilisation",
        "latency.utilisation",
        "share",
        ("latency.arrivals_per_s", "fleet.active_replicas", "latency.saturated_tokens_per_s"),
        optional=True,
    ),
    Row(
        _SPEED,
        "active on average",
        "latency.concurrency_mean",
        "number",
        ("latency.arrivals_per_s", "latency.request_s"),
        optional=True,
    ),
    Row(_SPEED, "active, p99", "latency.concurrency_p99", "count", ("latency.concurrency_mean",), optional=True),
    Row(
        _SPEED,
        "wait for a slot, p95",
        "latency.slot_wait_p95_s",
        "seconds",
        ("latency.utilisation",),
        optional=True,
        plain=0.0,
    ),
    Row(
        _SPEED,
        "TTFT in time",
        "latency.ttft_attained_share",
        "share",
        ("latency.ttft_p95_s", "scenario.ttft_p95_limit_s"),
        optional=True,
    ),
)
