"""The tabular winners on ten seeds that chose nothing: which differences between methods are more than chance?

Of FLamby-Heart and UCI Credit, the settings that won in reproduction/results run on seeds 100 to 109, and methods are
compared seed by seed: python -m reproduction.experiments.more_seeds

Runs go to reproduction/experiments/results/more-seeds-ROW.jsonl. Called again, it runs what is missing, and prints the
tables.
"""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedlap.errors import DataError
from fedlap.experiments.results import load
from fedlap.experiments.runner import carry_out
from fedlap.experiments.summary import finals, value
from reproduction.commit import version
from reproduction.rows import ALGORITHMS, HONEST, PAPER, Paper

ROWS = ("flamby", "uci-heterog", "uci-homog")
STANDARD = tuple(f"standard-{name}" for name in ROWS)
SEEDS = tuple(range(100, 110))
TITLES = {PAPER: "chosen on test", HONEST: "chosen on validation"}
# Those that the paper, or docs/reproduction.md, makes claims about.
PAIRS = [
    ("fedlap", "feddyn"),
    *product(("feddyn", "fedlap"), ("fedavg", "fedprox")),
    ("fedlap_func", "fedlap"),
    *(("fedlap_cov", other) for other in ALGORITHMS if other != "fedlap_cov"),
]


class Difference(NamedTuple):
    """Of two methods' accuracies, in points: the mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, first, second):
        """By Student's t over the differences seed by seed."""
        each = 100 * (np.asarray(first) - np.asarray(second))
        margin = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        return cls(each.mean(), each.mean() - margin, each.mean() + margin)

    def __str__(self):
        mean, low, high = (f"{number:+.1f}".replace("-", "−") for number in self)
        return f"{mean} ({low} to {high})".replace("−0.0", "0.0").replace("+0.0", "0.0")


class FurtherSeeds(NamedTuple):
    """A row of the paper's tables and its ten seeds: the settings that won in each way, and their results."""

    title: str
    chosen: dict
    results: list

    def accuracies(self, algorithm, way):
        """At the last round, of each seed; None where the method is not in the row, or nothing was chosen."""
        setting = self.chosen.get((algorithm, way))
        if setting is None:
            return None
        runs = finals(self.results, algorithm, setting)
        if tuple(run.seed for run in runs) != SEEDS:
            raise DataError(f"{self.title}, {algorithm}: {len(runs)} of {len(SEEDS)} seeds have run; run this script")
        return [value(run.curves["test"])[0] for run in runs]


def sweep_of(row):
    return replace(row.sweep, final_seeds=SEEDS)


def file_of(row):
    return row.spec.parents[1] / f"experiments/results/more-seeds-{row.name}.jsonl"


def read(row):
    won = {(name, way): row.chosen(name, way) for name in row.sweep.algorithms for way in TITLES}
    chosen = {key: each.setting for key, each in won.items() if each is not None}
    return FurtherSeeds(row.title, chosen, sweep_of(row).select(load(file_of(row))))


def table(rows, way, pairs=PAIRS):
    """A line a pair of methods, a column a row: the first's accuracy less the second's."""
    lines = [["difference", *(row.title for row in rows)], ["---"] * (1 + len(rows))]
    for pair in pairs:
        both = [[row.accuracies(name, way) for name in pair] for row in rows]
        cells = ["–" if None in each else str(Difference.of(*each)) for each in both]
        if any(cell != "–" for cell in cells):
            lines.append([" − ".join(ALGORITHMS[name] for name in pair), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    paper = Paper.find()
    for names, inputs in ((ROWS, "the paper's inputs"), (STANDARD, "standard inputs")):
        rows = [paper.row(name) for name in names]
        for row in rows:
            for _ in carry_out(sweep_of(row), file_of(row), quick=row.winners, version=version()):
                pass
        for way, words in TITLES.items():
            print(f"Accuracy in points, settings {words}, {inputs}\n\n{table([read(row) for row in rows], way)}\n")


if __name__ == "__main__":
    main()
