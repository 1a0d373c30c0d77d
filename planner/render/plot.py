"""Plots on a terminal."""

import plotille

from planner.report import Report
from planner.report_simulation import Simulation
from planner.units import GIB, KIB


def cache_curve(report: Report, width: int) -> str:
    """KV bytes of one request over its context, reserved and held."""
    points = report.kv_cache.by_context
    contexts = [point.context_tokens / KIB for point in points]
    figure = _figure(width)
    figure.x_label, figure.y_label = "context, Ki tokens", "GiB"
    figure.set_x_limits(min_=0, max_=contexts[-1])
    figure.set_y_limits(min_=0)
    figure.plot(contexts, [point.reserved_bytes / GIB for point in points], label="reserved")
    figure.plot(contexts, [point.held_bytes / GIB for point in points], label="held", marker="o")
    drawn: str = figure.show(legend=True)
    return drawn


def simulation_curves(found: Simulation, width: int) -> str:
    """Requests that run and wait, and the share of the KV cache in use, over time."""
    times = [point.time_s for point in found.series]
    requests = _figure(width)
    requests.x_label, requests.y_label = "seconds", "requests"
    requests.set_x_limits(min_=0, max_=max(1.0, times[-1] if times else 1.0))
    requests.set_y_limits(min_=0)
    requests.plot(times, [point.running for point in found.series], label="running")
    requests.plot(times, [point.waiting for point in found.series], label="waiting", marker="o")
    used = _figure(width)
    used.x_label, used.y_label = "seconds", "% of KV cache in use"
    used.set_x_limits(min_=0, max_=max(1.0, times[-1] if times else 1.0))
    used.set_y_limits(min_=0, max_=100)
    used.plot(times, [100 * point.kv_used_share for point in found.series])
    return f"{requests.show(legend=True)}\n\n{used.show()}"


def _figure(width: int) -> plotille.Figure:
    figure = plotille.Figure()
    figure.width, figure.height = max(20, min(width - 20, 100)), 16
    figure.with_colors = figure.origin = False
    figure.x_ticks_fkt = figure.y_ticks_fkt = _tick
    return figure


def _tick(low: float, _: float) -> str:
    return f"{low:.4g}"
