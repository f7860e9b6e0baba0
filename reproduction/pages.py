"""The tables in docs/, in the notes and in the README, made from the committed results: python -m reproduction pages"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from fedlap.errors import DataError
from reproduction import figures, tables, write
from reproduction.experiments import more_seeds
from reproduction.picture import picture
from reproduction.rows import ALGORITHMS, HONEST, PAPER, WIDER, Paper
from reproduction.tables import Entry

REPOSITORY = Path(__file__).parents[1]
IMAGES = REPOSITORY / "docs/images"
PAGE, NOTES = "docs/reproduction.md", "reproduction/notes"
GROUPS = {
    "FedLap": ["fedlap"],
    "FedLap-Cov": ["fedlap_cov"],
    "FedLap-Func": ["fedlap_func"],
    "FedAvg, FedProx, FedDyn": ["fedavg", "fedprox", "feddyn"],
}
EXTRACT = {"flamby": "1", "uci-heterog": "1", "uci-homog": "4", "fmnist-homog": "1", "fmnist-heterog": "1"}
COLUMNS = [name for name in ALGORITHMS if name != "fedprox"]
CLAIMS = [  # of the paper, as differences between two methods
    ("fedlap", "feddyn"),
    ("fedlap", "fedavg"),
    ("feddyn", "fedavg"),
    ("fedlap_cov", "fedlap"),
    ("fedlap_func", "fedlap"),
]


def pages(paper: Paper) -> dict[Path, str]:
    """The text of every page that has tables of results in it, with these as the results are now."""
    texts = {
        REPOSITORY / f"docs/tables/table-{number}.md": write.markdown(tables.entries(paper, number), number)
        for number in tables.KINDS
    }
    ten_seeds = [more_seeds.read(paper.row(name)) for name in more_seeds.ROWS]
    for name, head, table in (
        ("README.md", r"\| data set \| +\| FedAvg", extract(paper)),
        (PAGE, r"\| table \| FedLap ", counts(paper)),
        (PAGE, r"\| data set \| FedLap ", rows(paper)),
        (PAGE, r"\| data set \| method ", missed(paper)),
        (PAGE, r"\| difference ", more_seeds.table(ten_seeds, PAPER, CLAIMS)),
        (f"{NOTES}/at-a-glance.md", r"\| data set \| FedLap ", glance(paper)),
        (f"{NOTES}/at-a-glance.md", r"\| table \| chosen on ", verdicts(paper)),
        (f"{NOTES}/claims.md", r"\| difference ", more_seeds.table(ten_seeds, PAPER)),
        (f"{NOTES}/fedlap-and-fedlap-cov.md", r"\| table \| data set ", outside(paper)),
        (f"{NOTES}/runs-and-time.md", r"\| row \| runs ", times(paper)),
    ):
        page = REPOSITORY / name
        text = texts.get(page) or page.read_text()
        pattern = rf"^{head}.*\n(?:\|.*\n)*"  # the table that begins with this head, to its last line
        texts[page], count = re.subn(pattern, lambda _, new=table: f"{new}\n", text, flags=re.MULTILINE)
        if count != 1:
            raise DataError(f"{page}: expected one table that begins with {head}, found {count}")
    return texts


def counts(paper: Paper) -> str:
    """How many cells of each table came out as printed, chosen on test and on validation."""
    lines = [["table", *GROUPS], ["---"] * (1 + len(GROUPS))]
    for number in printed_tables():
        both = []
        for way in (PAPER, HONEST):
            ran = [entry for entry in tables.entries(paper, number) if entry.ours[way] and entry.published]
            both.append([_inside(ran, names, way).replace(" of ", "/") for names in GROUPS.values()])
        cells = ("–" if first == "–" else f"{first}, {second}" for first, second in zip(*both, strict=True))
        lines.append([f"[Table {number}](tables/table-{number}.md): {tables.KINDS[number].title}", *cells])
    return _table(lines)


def rows(paper: Paper) -> str:
    """How many cells of each row of Table 1 came out as printed, and who is first at its last round."""
    head = ["data set", *GROUPS, "first, ours", "first, paper"]
    lines = [head, ["---"] * len(head)]
    for row, ran in of_table_1(paper):
        inside = [_inside(ran, names).replace(" of ", "/") for names in GROUPS.values()]
        lines.append([row.title, *inside, *first_methods(paper, row, ran)])
    return _table(lines)


def missed(paper: Paper) -> str:
    """The cells of Table 1 that came out otherwise at the last round of their row."""
    head = ["data set", "method", "ours", "paper"]
    lines = [head, ["---"] * len(head)]
    for row, ran in of_table_1(paper):
        for entry in ran:
            if entry.key == ran[-1].key and entry.verdict(PAPER) not in ("within", "near"):
                numbers = [write.number_text(number, 1) for number in (entry.ours[PAPER], entry.published)]
                lines.append([row.title, ALGORITHMS[entry.algorithm], *numbers])
    return _table(lines)


def of_table_1(paper: Paper) -> Iterator[tuple]:
    """(row, its entries that ran and were printed) of Table 1."""
    ran = [entry for entry in tables.entries(paper, "1") if entry.ours[PAPER] and entry.published]
    for row, group in groupby(ran, key=lambda entry: entry.row):
        yield row, list(group)


def printed_tables() -> list[str]:
    """The numbers of the paper's own tables."""
    return [number for number in tables.KINDS if number.isdigit()]


def first_methods(paper: Paper, row, ran: list[Entry]) -> tuple[str, str]:
    """Who is first at the last round of a row, here and in the paper."""
    last = ran[-1].key
    spreads = {e.algorithm: e.ours[PAPER] for e in ran if e.key == last}
    ours = {name: -math.inf if of.diverged else of.mean for name, of in spreads.items() if of is not None}
    printed = [e for e in tables.entries(paper, "1", row.name) if e.key == last and e.published]
    missing = set(ours) != set(row.sweep.algorithms)
    return "not all have run" if missing else _first(ours), _first({e.algorithm: e.published[0] for e in printed})


def extract(paper: Paper) -> str:
    """The last round of a few rows, chosen as in the paper."""
    lines = [["data set", "", *(ALGORITHMS[name] for name in COLUMNS)], ["---"] * (2 + len(COLUMNS))]
    for row, number in EXTRACT.items():
        entries = tables.entries(paper, number, row)
        last = {entry.algorithm: entry for entry in entries if entry.key == entries[-1].key}
        both = [(last[name].ours[PAPER], last[name].published) if name in last else (None, None) for name in COLUMNS]
        lines.append([paper.row(row).title, "ours", *(write.number_text(ours, 1) for ours, _ in both)])
        lines.append(["", "paper", *(write.number_text(published, 1) for _, published in both)])
    return _table(lines)


def glance(paper: Paper) -> str:
    """How many cells of Table 1 came out as printed, who is first at the last round, and how long a run takes."""
    wider, first = "FedLap-Func, wider grid", "first at the last round, ours"
    head = ["data set", *GROUPS, wider, first, "the paper's", "seconds a run", "paper, minutes"]
    lines = [head, ["---"] * len(head)]
    beyond = [entry for entry in tables.entries(paper, "1") if entry.ours[WIDER] and entry.published]
    for row, ran in of_table_1(paper):
        last = [entry for entry in ran if entry.key == ran[-1].key]
        # Of the quickest seed: the others often waited for other work.
        seconds = [min(run.seconds for run in row.runs(entry.algorithm, PAPER)) for entry in last]
        lines.append(
            [
                row.title,
                *(_inside(ran, names) for names in GROUPS.values()),
                _inside([entry for entry in beyond if entry.row == row], ["fedlap_func"], WIDER),
                *first_methods(paper, row, ran),
                _range(seconds),
                "–" if row.minutes is None else f"up to {row.minutes:g}",
            ]
        )
    everything = [entry for _, ran in of_table_1(paper) for entry in ran]
    inside = [*(_inside(everything, names) for names in GROUPS.values()), _inside(beyond, ["fedlap_func"], WIDER)]
    lines.append(["all", *inside, "", "", "", ""])
    return _table(lines)


def verdicts(paper: Paper) -> str:
    """How many cells of every table came out as printed, in both ways of choosing."""
    lines = [["table", "chosen on", *GROUPS], ["---"] * (2 + len(GROUPS))]
    for number in printed_tables():
        for way, title in ((PAPER, write.title(number)), (HONEST, "")):
            ran = [entry for entry in tables.entries(paper, number) if entry.ours[way] and entry.published]
            inside = (_inside(ran, names, way, strictly=True) for names in GROUPS.values())
            lines.append([title, write.CHOSEN_ON[way], *inside])
    return _table(lines)


def outside(paper: Paper) -> str:
    """Every cell of FedLap and FedLap-Cov that came out otherwise, and whether its printed line lies in the grid."""
    head = ["table", "data set", "method", "at", "ours", "paper", "a setting of the grid that gives the printed line"]
    lines = [head, ["---"] * len(head)]
    for number in printed_tables():
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


def times(paper: Paper) -> str:
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


def _duration(seconds: float) -> str:
    size, unit = (3600, "h") if seconds >= 5400 else (60, "min") if seconds >= 90 else (1, "s")
    return f"{seconds / size:.2g} {unit}"


def _inside(entries: Iterable[Entry], names: list[str], way: str = PAPER, strictly: bool = False) -> str:
    """How many are within two published deviations or a point; strictly, also how many without the point."""
    mine = [entry.verdict(way) for entry in entries if entry.algorithm in names]
    if not mine:
        return "–"
    counts = f"{sum(verdict in ('within', 'near') for verdict in mine)} of {len(mine)}"
    return f"{counts} ({mine.count('within')})" if strictly else counts


def _first(values: dict[str, float]) -> str:
    """Those that share the highest number as it is printed."""
    best = max(round(value, 1) for value in values.values())
    return ", ".join(ALGORITHMS[name] for name, value in values.items() if round(value, 1) == best)


def _range(seconds: list[float]) -> str:
    digits = 0 if min(seconds) > 10 else 2
    return f"{min(seconds):.{digits}f} to {max(seconds):.{digits}f}"


def _table(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_all() -> list[Path]:
    """Write the pages and the pictures; their paths."""
    paper = Paper.find()
    texts = pages(paper)
    for path, text in texts.items():
        path.write_text(text)
    drawn = [picture(tables.entries(paper, "1"), "1", IMAGES / "table-1.png")]
    for name, draw in figures.FIGURES.items():
        drawn.append(IMAGES / f"{name}.png")
        draw(paper, drawn[-1])
    return [*texts, *drawn]
