"""The table and the picture of `choosing`, from its file of results."""

from pathlib import Path
from typing import Any

import numpy as np

SCORES = {"accuracy": "accuracy %", "nll": "NLL", "brier": "Brier", "ece": "ECE"}
TITLES = {"fashion_mnist": "Fashion-MNIST 10 %, heterogeneous, MLP", "credit": "UCI Credit, heterogeneous, logistic"}
WAYS = {"point": ("tab:blue", "o"), "posterior": ("tab:orange", "D"), "narrowed": ("tab:green", "s")}
Lines = list[dict[str, Any]]


def write(lines: Lines, folder: Path) -> None:
    """Write docs/tables/choosing.md, and docs/images/choosing.png if matplotlib is here."""
    finals = with_narrowed(lines)
    parts = ["<!-- made by benchmarks/choosing.py from benchmarks/choosing.jsonl -->\n"]
    for data in dict.fromkeys(line["data"] for line in finals):
        parts.append(f"## {TITLES[data]}\n\n{table([line for line in finals if line['data'] == data])}")
    (folder / "docs" / "tables" / "choosing.md").write_text("\n".join(parts))
    draw(finals, folder / "docs" / "images" / "choosing.png")


def with_narrowed(lines: Lines) -> Lines:
    """The finals, each with what its posterior says once it is narrowed as one way more of its last round."""
    key = lambda line: (line["data"], line["method"], line["seed"])
    narrowed = {key(line): line for line in lines if line["kind"] == "narrowed"}
    finals = taken([line for line in lines if line["kind"] == "final"])
    for line in finals:
        if (more := narrowed.get(key(line))) is not None:
            last(line)["narrowed"] = more["narrowed"]
            if "strangers" in line:
                line["strangers"]["narrowed"] = more["strangers"]
    return finals


def taken(finals: Lines) -> Lines:
    """Of each method on each data set the first setting with which no seed diverged, or else the very first."""
    found: dict[tuple[str, str], dict[str, Lines]] = {}
    for line in finals:
        settings = found.setdefault((line["data"], line["method"]), {})
        settings.setdefault(str(line["setting"]), []).append(line)
    first = lambda settings: next(filter(survived, settings), settings[0])
    return [line for settings in found.values() for line in first(list(settings.values()))]


def survived(runs: Lines) -> bool:
    """Whether none of these has diverged."""
    return all(np.isfinite(last(run)["point"]["nll"]) for run in runs)


def by_method(lines: Lines) -> dict[str, Lines]:
    """The finals of each method, by seed."""
    methods: dict[str, Lines] = {}
    for line in lines:
        methods.setdefault(line["method"], []).append(line)
    return methods


def table(lines: Lines) -> str:
    """A row for each method and way, best accuracy first."""
    marks = sorted({int(mark) for line in lines for mark in line["marks"]} - {1})
    heads = ["method", "", *(f"{name}, rounds {', '.join(map(str, marks))}" for name in SCORES.values())]
    heads += ["strangers", "seconds a round", "numbers up, down", "setting", "seeds"]
    methods = by_method(lines)
    end = lambda method: -np.mean([last(line)["point"]["accuracy"] for line in methods[method]])
    rows = []
    for method in sorted(methods, key=end):
        runs = methods[method]
        for way in WAYS:
            if way in last(runs[0]):
                rows.append(row(method, way, runs, marks))
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (heads, ["---"] * len(heads), *rows))


def row(method: str, way: str, runs: Lines, marks: list[int]) -> list[str]:
    """One method at the point, or by its posterior."""
    cells = []
    for score in SCORES:
        known = lambda mark: all(way in mark_of(run, mark) for run in runs)
        scored = lambda mark, score=score: number([mark_of(run, mark)[way][score] for run in runs], score)
        texts = [scored(mark) if known(mark) else "–" for mark in marks]
        cells.append(texts[-1] if len(set(texts)) == 1 else "; ".join(texts))
    strangers = [run["strangers"][way] for run in runs if "strangers" in run]
    seconds = np.median([run["seconds"] for run in runs])
    sent, setting = runs[0]["sent"], runs[0]["setting"]
    said = f"rate {setting['rate']:g}" + ("" if setting["number"] is None else f", number {setting['number']:g}")
    first = way == "point"
    return [
        method if first else "",
        way,
        *cells,
        number(strangers, "nll") if strangers else "–",
        f"{seconds:.2g}" if first else "",
        f"{sent['up']:,}, {sent['down']:,}" if first else "",
        said if first else "",
        str(len(runs)) if first else "",
    ]


def mark_of(run: dict[str, Any], mark: int) -> dict[str, Any]:
    """The scores at a round; of a one-shot method those of its only one."""
    return run["marks"].get(str(mark)) or last(run)


def last(run: dict[str, Any]) -> dict[str, Any]:
    """The scores at the last round."""
    return run["marks"][max(run["marks"], key=int)]


def ends_of(runs: Lines, way: str) -> np.ndarray:
    """The NLL of each seed at the last round; none where a method has no posterior."""
    return np.array([last(run)[way]["nll"] for run in runs if way in last(run)])


def number(values: list[float], score: str) -> str:
    """Mean and standard deviation over seeds."""
    if not np.isfinite(values).all():
        return "diverged"
    scale, digits = (100, 1) if score == "accuracy" else (1, 3)
    mean, spread = scale * np.mean(values), scale * np.std(values)
    return f"{mean:.{digits}f} ({spread:.{digits}f})" if len(values) > 1 else f"{mean:.{digits}f}"


def draw(lines: Lines, path: Path) -> None:
    """NLL at the last round, at the point and by the posterior, of each method."""
    try:
        import matplotlib
    except ImportError:
        print("choosing.png is not drawn: matplotlib is not here")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(line["data"] for line in lines))
    figure, axes = plt.subplots(1, len(names), figsize=(6.5 * len(names), 5.5), layout="constrained", squeeze=False)
    for axis, data in zip(axes[0], names, strict=True):
        methods = by_method([line for line in lines if line["data"] == data])
        ends = {(method, way): ends_of(runs, way) for method, runs in methods.items() for way in WAYS}
        finite = [method for method in methods if np.isfinite(ends[method, "point"]).all()]
        order = sorted(finite, key=lambda method, ends=ends: -ends[method, "point"].mean())
        for place, method in enumerate(order):
            for way, (colour, marker) in WAYS.items():
                found = ends[method, way]
                if len(found):
                    axis.errorbar(found.mean(), place, xerr=found.std(), fmt=marker, color=colour, markersize=5)
        axis.set_yticks(range(len(order)), order)
        axis.set(xlabel="test negative log-likelihood after 50 rounds", title=TITLES[data])
        best = min(ends[method, way].mean() for method in order for way in WAYS if len(ends[method, way]))
        axis.set_xlim(0.95 * best, min(3.5 * best, axis.get_xlim()[1]))
        for place, method in enumerate(order):
            if (beyond := ends[method, "point"].mean()) > axis.get_xlim()[1]:
                axis.annotate(
                    f"{beyond:.1f} →", (1, place), xycoords=("axes fraction", "data"), ha="right", va="center"
                )
        axis.grid(alpha=0.3)
    for label, (colour, marker) in WAYS.items():
        axes[0][0].plot([], [], marker, color=colour, label=label)
    axes[0][0].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)
