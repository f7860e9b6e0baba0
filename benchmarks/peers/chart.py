"""The picture of a run: `python -m benchmarks.peers.chart [RESULTS.json] [PICTURE.png]`."""

import json
import sys
from pathlib import Path

from benchmarks.peers.report import fastest, median, quartiles, seconds

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PICTURE = HERE.parent.parent / "docs" / "images" / "peers.png"
COLOURS = {"FedAvg": "#1f77b4", "FedProx": "#d95f02"}


def draw(results, path) -> None:
    """A panel a workload: a round's seconds, on a log axis, of each peer in its fastest configuration."""
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(cell["title"] for cell in results["cells"]))
    rows = -(-len(titles) // 2)
    figure = Figure(figsize=(11, 0.9 + 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False).ravel()
    for panel, title in zip(axes, titles, strict=False):
        _panel(panel, [cell for cell in results["cells"] if cell["title"] == title])
    for panel in axes[len(titles) :]:
        panel.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("One federated round, the same work for all (further left is faster; × is times fedlap's)")
    figure.savefig(path, dpi=110)


def _panel(panel, cells):
    peers = [entry["peer"] for entry in cells[0]["entries"]]
    places = {peer: place for place, peer in enumerate(dict.fromkeys(peers))}
    height = 0.7 / len(cells)
    for number, cell in enumerate(cells):
        ours = median(cell["entries"][0])
        for entry in fastest(cell):
            place, middle = places[entry["peer"]] + (number - (len(cells) - 1) / 2) * height, median(entry)
            low, high = quartiles(entry)
            label = cell["algorithm"] if entry["peer"] == peers[0] else None
            colour = COLOURS[cell["algorithm"]]
            panel.plot([low, high], [place, place], color=colour, linewidth=3, alpha=0.5)
            panel.plot(middle, place, "o", color=colour, label=label)
            times = "" if entry["peer"] == peers[0] else f"  ({_times(middle / ours)})"
            panel.text(max(middle, high) * 1.25, place, seconds(middle) + times, va="center", fontsize=8)
    panel.set_xscale("log")
    everything = [second for cell in cells for entry in fastest(cell) for second in (median(entry), *quartiles(entry))]
    panel.set_xlim(min(everything) / 3, max(everything) * 12)
    panel.grid(axis="x", alpha=0.3)
    panel.set_yticks(list(places.values()), list(places))
    panel.invert_yaxis()
    panel.set_title(cells[0]["title"], fontsize=10, loc="left")
    panel.set_xlabel("seconds a round", fontsize=8)
    panel.tick_params(labelsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def _times(ratio):
    return f"× {ratio:.0f}" if ratio >= 10 else f"× {ratio:.1f}" if ratio >= 2 else f"× {ratio:.2f}"


def main():
    results, picture = [*sys.argv[1:], RESULTS, PICTURE][:2] if len(sys.argv) < 3 else sys.argv[1:3]
    draw(json.loads(Path(results).read_text()), picture)


if __name__ == "__main__":
    main()
