"""Bring docs/tables, their pictures and the tables in other pages up to the committed results: python paper/pages.py"""

import math
import re
import statistics
from itertools import groupby
from pathlib import Path

from fedlap.paper import figures, tables, write
from fedlap.paper.picture import picture
from fedlap.paper.rows import ALGORITHMS, HONEST, PAPER, WIDER, Paper

REPOSITORY = Path(__file__).parents[1]
IMAGES = REPOSITORY / "docs/images"
GROUPS = {
    "FedLap": ["fedlap"],
    "FedLap-Cov": ["fedlap_cov"],
    "FedLap-Func": ["fedlap_func"],
    "FedAvg, FedProx, FedDyn": ["fedavg", "fedprox", "feddyn"],
}
EXTRACT = {"flamby": "1", "uci-heterog": "1", "uci-homog": "4", "fmnist-homog": "1", "fmnist-heterog": "1"}
COLUMNS = [name for name in ALGORITHMS if name != "fedprox"]


def pages(paper):
    """{path: text}."""
    found = {
        REPOSITORY / f"docs/tables/table-{number}.md": write.markdown(tables.entries(paper, number), number)
        for number in tables.KINDS
    }
    for name, head, table in (
        ("README.md", r"\| data set \| +\| FedAvg", extract(paper)),
        ("docs/reproduction.md", r"\| data set \| FedLap ", glance(paper)),
        ("docs/reproduction.md", r"\| table \| chosen on ", verdicts(paper)),
        ("docs/reproduction.md", r"\| table \| data set ", outside(paper)),
        ("docs/reproduction.md", r"\| row \| runs ", times(paper)),
    ):
        page = REPOSITORY / name
        text = found.get(page) or page.read_text()
        # From the head of its table to the next empty line.
        new = f"{table}\n\n"
        found[page], count = re.subn(rf"{head}.*?\n\n", lambda _, new=new: new, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page}: expected one table that begins with {head}, found {count}")
    return found


def extract(paper):
    """The last round of a few rows, chosen as in the paper."""
    lines = [["data set", "", *(ALGORITHMS[name] for name in COLUMNS)], ["---"] * (2 + len(COLUMNS))]
    for row, number in EXTRACT.items():
        entries = tables.entries(paper, number, row)
        last = {entry.algorithm: entry for entry in entries if entry.key == entries[-1].key}
        both = [(last[name].ours[PAPER], last[name].published) if name in last else (None, None) for name in COLUMNS]
        lines.append([paper.row(row).title, "ours", *(write.number_text(ours, 1) for ours, _ in both)])
        lines.append(["", "paper", *(write.number_text(published, 1) for _, published in both)])
    return _table(lines)


def glance(paper):
    """How many cells of Table 1 came out as printed, who is first at the last round, and how long a run takes."""
    wider, first = "FedLap-Func, wider grid", "first at the last round, ours"
    head = ["data set", *GROUPS, wider, first, "the paper's", "seconds a run", "paper, minutes"]
    lines, entries = [head, ["---"] * len(head)], tables.entries(paper, "1")
    ran = [entry for entry in entries if entry.ours[PAPER] and entry.published]
    beyond = [entry for entry in entries if entry.ours[WIDER] and entry.published]
    for row, mine in groupby(ran, key=lambda entry: entry.row):
        mine = list(mine)
        last = [entry for entry in mine if entry.key == mine[-1].key]
        ours = {e.algorithm: -math.inf if e.ours[PAPER].diverged else e.ours[PAPER].mean for e in last}
        theirs = {e.algorithm: e.published[0] for e in entries if (e.row, e.key) == (row, mine[-1].key) and e.published}
        # Of the quickest seed: the others often waited for other work.
        seconds = [min(run.seconds for run in row.runs(entry.algorithm, PAPER)) for entry in last]
        lines.append(
            [
                row.title,
                *(_inside(mine, names) for names in GROUPS.values()),
                _inside([entry for entry in beyond if entry.row == row], ["fedlap_func"], WIDER),
                _first(ours) if set(ours) == set(row.sweep.algorithms) else "not all have run",
                _first(theirs),
                _range(seconds),
                "–" if row.minutes is None else f"up to {row.minutes:g}",
            ]
        )
    counts = [*(_inside(ran, names) for names in GROUPS.values()), _inside(beyond, ["fedlap_func"], WIDER)]
    lines.append(["all", *counts, "", "", "", ""])
    return _table(lines)


def verdicts(paper):
    """How many cells of every table came out as printed, in both ways of choosing."""
    lines = [["table", "chosen on", *GROUPS], ["---"] * (2 + len(GROUPS))]
    for number in (each for each in tables.KINDS if each.isdigit()):
        for way, title in ((PAPER, write.title(number)), (HONEST, "")):
            ran = [entry for entry in tables.entries(paper, number) if entry.ours[way] and entry.published]
            inside = (_inside(ran, names, way, strictly=True) for names in GROUPS.values())
            lines.append([title, write.CHOSEN_ON[way], *inside])
    return _table(lines)


def outside(paper):
    """Every cell of FedLap and FedLap-Cov that came out otherwise, and whether its printed line lies in the grid."""
    head = ["table", "data set", "method", "at", "ours", "paper", "a setting of the grid that gives the printed line"]
    lines = [head, ["---"] * len(head)]
    for number in (each for each in tables.KINDS if each.isdigit()):
        entries = [entry for entry in tables.entries(paper, number) if entry.algorithm in ("fedlap", "fedlap_cov")]
        for entry in entries:
            if entry.verdict(PAPER) in ("above", "below", "diverged"):
                line = [e for e in entries if (e.row, e.algorithm) == (entry.row, entry.algorithm) and e.published]
                near = tables.nearest(line) if entry.kind.point else None
                found = write.setting_text(near.setting) if near and near.inside else "none that has run"
                texts = [write.number_text(each, entry.kind.digits) for each in (entry.ours[PAPER], entry.published)]
                name, where = ALGORITHMS[entry.algorithm], f"{entry.kind.head} {entry.key}"
                lines.append([number, entry.row.title, name, where, *texts, found if entry.kind.point else "–"])
    return _table(lines)


def times(paper):
    """What every row has taken so far, and a run of it beside the paper's."""
    head = ["row", "runs", "all of them", "a run, median (longest)", "the paper's"]
    lines = [head, ["---"] * len(head)]
    for row in map(paper.row, paper.names):
        seconds = [result.seconds for result in row.candidates]
        if seconds:
            one = f"{_duration(statistics.median(seconds))} ({_duration(max(seconds))})"
            theirs = "" if row.minutes is None else f"up to {row.minutes} min"
            lines.append([f"`{row.name}`", str(len(seconds)), _duration(sum(seconds)), one, theirs])
    return _table(lines)


def _duration(seconds):
    size, unit = (3600, "h") if seconds >= 5400 else (60, "min") if seconds >= 90 else (1, "s")
    return f"{seconds / size:.2g} {unit}"


def _inside(entries, names, way=PAPER, strictly=False):
    """How many are within two published deviations or a point; strictly, also how many without the point."""
    mine = [entry.verdict(way) for entry in entries if entry.algorithm in names]
    if not mine:
        return "–"
    counts = f"{sum(verdict in ('within', 'near') for verdict in mine)} of {len(mine)}"
    return f"{counts} ({mine.count('within')})" if strictly else counts


def _first(values):
    """Those that share the highest number as it is printed."""
    best = max(round(value, 1) for value in values.values())
    return ", ".join(ALGORITHMS[name] for name, value in values.items() if round(value, 1) == best)


def _range(seconds):
    digits = 0 if min(seconds) > 10 else 2
    return f"{min(seconds):.{digits}f} to {max(seconds):.{digits}f}"


def _table(lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    paper = Paper.find(REPOSITORY / "paper")
    for path, text in pages(paper).items():
        path.write_text(text)
    picture(tables.entries(paper, "1"), "1", IMAGES / "table-1.png")
    for name, draw in figures.FIGURES.items():
        draw(paper, IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
