"""What a run found, as Markdown tables."""

import statistics
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables" / "peers.md"
SHORT = (
    "contestant",
    "seconds a round",
    "quartiles",
    "times fedlap's",
    "memory",
    "start-up",
    "of it, setting up",
)
FULL = (*SHORT, "weights off, single", "double")


def median(entry) -> float:
    return statistics.median(entry["seconds"])


def quartiles(entry) -> tuple[float, float]:
    low, _, high = statistics.quantiles(entry["seconds"], n=4, method="inclusive")
    return low, high


def fastest(cell) -> list[dict]:
    """Each peer in its fastest configuration, in the order of the contestants."""
    best = {}
    for entry in cell["entries"]:
        before = best.get(entry["peer"])
        if before is None or median(entry) < median(before):
            best[entry["peer"]] = entry
    return list(best.values())


def together(before, now, order) -> list[dict]:
    """The cells of an earlier run and of this one, which replaces its own, in the order of the workloads."""
    place = lambda cell: (order.index(cell["workload"]), cell["algorithm"])
    return [cell for _, cell in sorted({place(cell): cell for cell in (*before, *now)}.items())]


def tables(results, full=False) -> str:
    """One table a cell: each peer's fastest configuration, or all of them and how far their weights are off."""
    return "\n\n".join(_table(cell, full) for cell in results["cells"])


def page(results) -> str:
    """All configurations of all cells, for the docs."""
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    return f"<!-- made by benchmarks/peers from its results.json -->\n\n{machine}\n\n{tables(results, full=True)}\n"


def _table(cell, full):
    ours = median(cell["entries"][0])
    load = "–".join(f"{load:.1f}" for load in cell["load"])
    turns = len(cell["entries"][0]["seconds"])
    busy = ", threads that sleep to wait" if cell["busy"] else ""
    lines = [f"**{cell['title']}, {cell['algorithm']}** ({turns} turns, load average {load}{busy})", ""]
    lines += [_line(FULL if full else SHORT), _line(["---"] * len(FULL if full else SHORT))]
    for entry in cell["entries"] if full else fastest(cell):
        low, high = quartiles(entry)
        fields = [entry["contestant"], seconds(median(entry)), f"{seconds(low)} – {seconds(high)}"]
        fields += [f"{median(entry) / ours:.2f}", f"{entry['memory']:.0f} MB", f"{entry['start_up']:.1f} s"]
        fields += [f"{max(0.0, entry['first'] - median(entry)):.1f} s"]
        off = [f"{entry[precision]['length']:.0e}" for precision in ("single", "double")] if full else []
        lines.append(_line([*fields, *off]))
    return "\n".join(lines)


def _line(fields):
    return "| " + " | ".join(fields) + " |"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
