"""Pictures of learning curves. The plotting library is loaded when one is drawn: training does not wait for it."""

import importlib.util
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedlap.errors import ConfigError
from fedlap.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURE = "to get it: pip install matplotlib, or fedlap[plots]"
Curves = Sequence[Sequence[float | None] | np.ndarray]  # a number a round of each run; None where there is none


class Line(NamedTuple):
    """Some runs of one method, a curve each."""

    label: str
    accuracy: Curves
    nll: Curves
    style: str = "-"


def accuracy_and_nll(
    lines: Iterable[Line], title: str, path: Path, accuracies: tuple[float, float] | None = None, of: str = "test"
) -> Path:
    """A PNG of both over rounds, mean and spread over each line's runs; `accuracies` are the ends of its axis.

    `of` says which rows they are of.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.2), layout="constrained")
    lines = list(lines)
    if len(lines) > 10:  # as many as there are usual colours
        for axis in axes:
            axis.set_prop_cycle(color=plt.colormaps["tab20"].colors)
    for line in lines:
        _band(axes[0], 100 * as_table(line.accuracy), line)
        _band(axes[1], as_table(line.nll), line)
    for axis, label in zip(axes, (f"{of} accuracy (%)", f"{of} negative log-likelihood"), strict=True):
        name_axes(axis, label)
        axis.xaxis.get_major_locator().set_params(integer=True)  # no half rounds
    axes[0].set_ylim(accuracies)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    figure.suptitle(title)
    return save(figure, path)


def name_axes(axis: "Axes", label: str) -> None:
    """Write what is along the two axes, rounds and `label`, and draw a grid."""
    axis.set(xlabel="communication round", ylabel=label)
    axis.grid(alpha=0.3)


def can_draw() -> bool:
    """Whether the plotting library is installed, which is an extra."""
    return importlib.util.find_spec("matplotlib") is not None


def pyplot() -> Any:
    """The plotting library, set to draw into files; an error that says how to get it if it is not here."""
    if not can_draw():
        raise ConfigError(f"pictures need matplotlib, which is not here; {CURE}")
    import matplotlib

    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot as plt

    return plt


def fetch() -> None:
    """Import the plotting library beside other work, if it is here: nobody has to wait for it then."""
    if can_draw():
        threading.Thread(target=pyplot, daemon=True).start()


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as a PNG and close it; returns the path."""
    with replacing(path) as file:
        figure.savefig(file, dpi=130, format="png")
    pyplot().close(figure)
    return path


def as_table(curves: Curves) -> np.ndarray:
    """An array with a row a run. One that diverged has a shorter curve and no numbers at its end."""
    table = np.full((len(curves), max(map(len, curves))), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = np.array(curve, float)
    return table


def _band(axis: "Axes", table: np.ndarray, line: Line) -> None:
    """Draw the mean over runs, with a band as wide as their deviation."""
    mean, deviation, rounds = table.mean(0), table.std(0), np.arange(1, table.shape[1] + 1)
    if len(rounds) == 1:  # a one-shot method: its answer, beside the others' paths
        axis.errorbar(rounds, mean, deviation, marker="D", capsize=3, label=line.label)
        return
    (drawn,) = axis.plot(rounds, mean, line.style, label=line.label)
    axis.fill_between(rounds, mean - deviation, mean + deviation, color=drawn.get_color(), alpha=0.15, linewidth=0)
