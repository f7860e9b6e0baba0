"""Rounds of 100 to 100,000 clients: seconds, memory, and what passes before the first round.

    python benchmarks/clients.py [--turns 7] [--only CELL ...]

FedLap-Cov, 20 rows a client. `logistic` has 42 features and two classes, `mlp` is the 784-200-100-10 network, whose
state of 10,000 clients (14 GB) is on disk. Each cell is a process that begins alone and with an empty compilation
cache; then they take turns at one round. Seconds are those of a round as `simulate` has them, with drawing of
minibatches and a look at the test set. The picture is docs/images/clients.png.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from timing import Child, load

HERE = Path(__file__).resolve().parent
RESULTS, PICTURE = HERE / "clients.json", HERE.parent / "docs" / "images" / "clients.png"
ROWS = 20


class Cell(NamedTuple):
    """How many clients there are, and how many of them a round draws."""

    model: str
    clients: int
    drawn: int
    turns: float = 1.0  # of those asked for

    @property
    def name(self):
        return f"{self.model}-{self.clients}" + ("" if self.drawn == self.clients else f"-{self.drawn}")


CELLS = [
    Cell("logistic", 100, 100, 5),
    Cell("logistic", 1_000, 1_000, 2),
    Cell("logistic", 10_000, 10_000),
    Cell("logistic", 100_000, 1_000, 2),
    Cell("mlp", 100, 100),
    Cell("mlp", 1_000, 1_000, 0.4),
    Cell("mlp", 10_000, 100),
    Cell("mlp", 10_000, 10_000, 0.3),
]


def federation(cell):
    import numpy as np

    import fedlap

    rng, size = np.random.default_rng(0), cell.clients * ROWS
    features, classes = (42, 2) if cell.model == "logistic" else (784, 10)
    inputs, labels = rng.standard_normal((size, features), np.float32), rng.integers(0, classes, size)
    return fedlap.Federation(
        name=cell.name,
        clients=tuple(f"client-{k}" for k in range(cell.clients)),
        inputs=inputs,
        labels=labels,
        rows=tuple(np.arange(size, dtype=np.int32).reshape(cell.clients, ROWS)),
        test_inputs=inputs[:100],
        test_labels=labels[:100],
        classes=classes,
    )


def serve(cell):
    """Be one cell: say how long it took until the first round was over, then the seconds of one more for every line."""
    import fedlap
    from fedlap.run.rounds import progress

    data = federation(cell)
    began = time.perf_counter()
    small = cell.model == "logistic"
    run = fedlap.Simulation.of(
        fedlap.FedLapCov(delta=1.0),
        data,
        fedlap.logistic() if small else fedlap.mlp((200, 100)),
        solver=fedlap.adam(epochs=10, batch=4) if small else fedlap.adam(epochs=5, batch=32),
        participation=1.0 if cell.drawn == cell.clients else cell.drawn,
    )
    rounds = progress(run, 1_000_000)
    next(rounds)
    first = time.perf_counter() - began
    on_disk = getattr(run.engine, "scratch", None) is not None
    print(json.dumps({"first": first, "on disk": on_disk}), flush=True)
    for _ in sys.stdin:
        _, table = next(rounds)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": table[-1, 0], "memory": memory}), flush=True)


def measure(cells, turns):
    """Cells of one group take turns; those of another would only take memory from them."""
    found = {}
    for group in dict.fromkeys(map(group_of, cells)):
        with tempfile.TemporaryDirectory() as scratch:
            found |= measure_group([cell for cell in cells if group_of(cell) == group], turns, Path(scratch))
    return found


def measure_group(cells, turns, scratch):
    """Each begins by itself, and finds nothing compiled; then they take turns."""
    children, entries = {}, {}
    for cell in cells:
        serve = [sys.executable, __file__, "--serve", cell.name]
        children[cell] = Child(serve, XDG_CACHE_HOME=str(scratch / cell.name))
        entries[cell] = {**cell._asdict(), **children[cell].hear(), "seconds": []}
    left = {cell: max(1, round(turns * cell.turns)) for cell in cells}
    while any(left.values()):
        for cell in [cell for cell in cells if left[cell]]:
            heard, left[cell] = children[cell].ask(), left[cell] - 1
            entries[cell]["seconds"].append(heard["seconds"])
            entries[cell]["memory"] = heard["memory"]
    for child in children.values():
        child.end()
    return {cell.name: entry | {"load": load()} for cell, entry in entries.items()}


def group_of(cell):
    return cell.model, cell.model == "mlp" and cell.clients >= 10_000


def show(found):
    print("| clients | drawn | a round (quartiles) | memory | first round over, cache empty | states | load |")
    print("|---|---|---|---|---|---|---|")
    for name, entry in found.items():
        seconds = entry["seconds"]
        low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        place = "on disk" if entry["on disk"] else "in memory"
        print(
            f"| {name.split('-')[0]}, {entry['clients']:,} | {entry['drawn']:,} | {statistics.median(seconds):.4g} "
            f"({low:.4g}–{high:.4g}) | {entry['memory'] / 1000:.2f} GB | {entry['first']:.1f} s | {place} | "
            f"{entry['load']} |"
        )
    median = lambda name: statistics.median(found[name]["seconds"])
    pairs = (("logistic-10000", "logistic-100"), ("logistic-100000-1000", "logistic-1000"), ("mlp-1000", "mlp-100"))
    for many, few in pairs:
        if many in found and few in found:
            print(f"{many}: {median(many) / median(few):.2f} times {few}")


def draw(found, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    times, memory = figure.subplots(1, 2)
    for model, colour in (("logistic", "#1f77b4"), ("mlp", "#d95f02")):
        for whole, marker, style in ((True, "o", "-"), (False, "s", "none")):
            entries = [e for e in found.values() if e["model"] == model and (e["clients"] == e["drawn"]) == whole]
            entries.sort(key=lambda entry: entry["clients"])
            label = f"{model}, " + ("all take part" if whole else "some do")
            count = [entry["clients"] for entry in entries]
            for panel, values in (
                (times, [statistics.median(entry["seconds"]) for entry in entries]),
                (memory, [entry["memory"] / 1000 for entry in entries]),
            ):
                panel.plot(count, values, marker=marker, linestyle=style, color=colour, label=label)
                for entry, x, y in zip(entries, count, values, strict=True):
                    note = "" if whole else f"{entry['drawn']:,} drawn"
                    if entry["on disk"]:
                        note += (", " if note else "") + "on disk"
                    beside = (7, 3 if whole else -9)
                    panel.annotate(note, (x, y), xytext=beside, textcoords="offset points", fontsize=7)
    for panel, what in ((times, "seconds a round"), (memory, "peak memory of the process, GB")):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("clients in the federation")
        panel.set_title(what, fontsize=10, loc="left")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlim(60, 500_000)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.yaxis.set_minor_formatter(lambda *_: "")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    memory.set_ylim(0.1, 10)
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = {cell.name: cell for cell in CELLS}
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--serve", choices=names, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(names[arguments.serve])
    found = measure([names[name] for name in arguments.only or names], arguments.turns)
    show(found)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = {name: (known | found)[name] for name in names if name in known | found}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    draw(known, PICTURE)


if __name__ == "__main__":
    main()
