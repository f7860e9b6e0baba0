"""A table as a picture: ours against the paper's."""

from math import inf

from fedlap.experiments.plots import pyplot, save
from reproduction.rows import ALGORITHMS, PAPER
from reproduction.tables import KINDS
from reproduction.write import title


def picture(entries, number, path):
    """Ours against the paper's, a panel a row: on the diagonal they agree."""
    plt, entries = pyplot(), list(entries)
    rows = list(dict.fromkeys(entry.row for entry in entries if any(entry.ours.values())))
    columns = min(max(len(rows), 1), 4)
    height = -(-max(len(rows), 1) // columns)
    figure, axes = plt.subplots(
        height, columns, figsize=(3.6 * columns, 3.4 * height), squeeze=False, layout="constrained"
    )
    colours = dict(zip(ALGORITHMS, plt.colormaps["tab10"].colors, strict=False))
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, rows, strict=False):
        shown = [e for e in entries if e.row == row and e.kind.measure is KINDS[number].measure]
        mine = [e for e in shown if e.published and e.ours[PAPER] and e.ours[PAPER].mean < inf]
        for entry in mine:
            ours = entry.ours[PAPER]
            axis.errorbar(
                entry.published[0],
                ours.mean,
                xerr=entry.published[1],
                yerr=ours.deviation,
                fmt="o",
                markersize=4,
                linewidth=1,
                color=colours[entry.algorithm],
            )
        ends = [n for e in mine for n in (e.published[0], e.ours[PAPER].mean)]
        if ends:
            axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="grey", linewidth=0.8, zorder=0)
        axis.set(title=row.title, xlabel="paper", ylabel="ours")
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    dots = [
        plt.Line2D([], [], marker="o", linestyle="", color=colours[name], label=label)
        for name, label in ALGORITHMS.items()
    ]
    figure.legend(handles=dots, loc="outside lower center", ncols=6, fontsize=8)
    figure.suptitle(f"{title(number)}, chosen on test as the paper seems to")
    return save(figure, path)
