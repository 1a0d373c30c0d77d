"""Plots on a terminal."""

import plotille

from planner.report import Report
from planner.units import GIB, KIB


def cache_curve(report: Report, width: int) -> str:
    """KV bytes of one request over its context, reserved and held."""
    points = report.kv_cache.by_context
    contexts = [point.context_tokens / KIB for point in points]
    figure = plotille.Figure()
    figure.width, figure.height = max(20, min(width - 20, 100)), 16
    figure.with_colors = False
    figure.x_label, figure.y_label = "context, Ki tokens", "GiB"
    figure.set_x_limits(min_=0, max_=contexts[-1])
    figure.set_y_limits(min_=0)
    figure.x_ticks_fkt = figure.y_ticks_fkt = _tick
    figure.plot(contexts, [point.reserved_bytes / GIB for point in points], label="reserved")
    figure.plot(contexts, [point.held_bytes / GIB for point in points], label="held", marker="o")
    drawn: str = figure.show(legend=True)
    return drawn


def _tick(low: float, _: float) -> str:
    return f"{low:.4g}"
