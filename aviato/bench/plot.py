"""The plots of a report as one PNG, by matplotlib (extra `bench`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.bench.report import Bars, Lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH = 9.0
"""Inches."""


def draw(title: str, plots: Sequence[Bars | Lines], path: Path) -> bool:
    """Write a PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    heights = [0.9 + 0.32 * len(plot.bars) if isinstance(plot, Bars) else 3.2 for plot in plots]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(len(plots), 1, squeeze=False, height_ratios=heights)
    for plot, (axis,) in zip(plots, axes, strict=True):
        (_bars if isinstance(plot, Bars) else _lines)(axis, plot)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True


def _bars(axis: Any, plot: Any) -> None:
    labels = [label for label, *_ in plot.bars]
    values = [value for _, value, _, _ in plot.bars]
    errors = [[value - low for _, value, low, _ in plot.bars], [high - value for _, value, _, high in plot.bars]]
    axis.barh(range(len(labels)), values, xerr=errors, color="#7a9cc6", ecolor="#333333", capsize=3)
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel(plot.unit)
    axis.set_title(plot.title, fontsize="medium", loc="left")


def _lines(axis: Any, plot: Any) -> None:
    for label, (xs, ys) in plot.lines.items():
        axis.plot(xs, ys, marker="o", markersize=3, label=label)
    axis.set_xlabel(plot.across)
    axis.set_ylabel(plot.up)
    axis.set_ylim(bottom=0)
    axis.set_title(plot.title, fontsize="medium", loc="left")
    axis.legend(fontsize="small")
