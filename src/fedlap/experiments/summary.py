"""What came out: mean and spread over the seeds that ran, as numbers, a table and a picture."""

from typing import NamedTuple

import numpy as np

from fedlap.experiments.plots import Line, accuracy_and_nll

LAST = 3  # rounds averaged for "the accuracy at the end", as in the paper's tables


class Row(NamedTuple):
    algorithm: str
    seeds: int
    diverged: int  # of these seeds
    accuracy: tuple[float, float]
    nll: tuple[float, float]
    reached: tuple[float, float] | None  # rounds to the target accuracy; None if a seed never reached it
    rounds: int
    seconds: float


def summarise(runs, target):
    """One row per algorithm, in the order in which they ran."""
    rows = []
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        mine = [run for run in runs if run.algorithm == algorithm]
        reached = [first_round(run.accuracy, target) for run in mine] if target is not None else [None]
        rows.append(
            Row(
                algorithm=algorithm,
                seeds=len(mine),
                diverged=sum(run.diverged for run in mine),
                accuracy=spread([run.accuracy[-LAST:].mean() for run in mine]),
                nll=spread([run.nll[-LAST:].mean() for run in mine]),
                reached=None if None in reached else spread(reached),
                rounds=len(mine[0].accuracy),
                seconds=sum(run.seconds.sum() for run in mine) / len(mine),
            )
        )
    return rows


def spread(values):
    """Mean and standard deviation over the seeds."""
    return float(np.mean(values)), float(np.std(values))


def first_round(accuracy, target):
    """The first round at which the target is reached, or None."""
    reached = np.flatnonzero(accuracy >= target)
    return int(reached[0]) + 1 if len(reached) else None


def cells(row, target):
    """A row as text: accuracy in percent, NLL, rounds to the target, rounds, seconds."""
    texts = [row.algorithm, *metrics(row)]
    if target is not None:
        texts.append("–" if row.reached is None else number(row.reached, 0, row.seeds))
    return [*texts, str(row.rounds), f"{row.seconds:.1f}"]


def metrics(row):
    """Accuracy in percent and NLL of whatever has them over some seeds, as text."""
    if row.diverged:
        return [f"{row.diverged} of {row.seeds} diverged", "–"]
    percent = tuple(100 * value for value in row.accuracy)
    return [number(percent, 1, row.seeds), number(row.nll, 3, row.seeds)]


def number(spread, digits, seeds):
    """A mean with its deviation, which one seed has none of."""
    mean, deviation = (f"{value:.{digits}f}" for value in spread)
    return f"{mean} ({deviation})" if seeds > 1 else mean


def caption(seeds):
    """What the numbers of a table are."""
    over = "mean (standard deviation) over seeds" if seeds > 1 else "one seed"
    return f"test set: {over}, last three rounds"


def heads(target):
    wanted = [] if target is None else [f"rounds to {100 * target:g} %"]
    return ["algorithm", "accuracy %", "NLL", *wanted, "rounds", "seconds"]


def markdown(rows, target):
    lines = [heads(target), ["---"] * len(heads(target)), *(cells(row, target) for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def curves(runs, name, path):
    """Accuracy and NLL over rounds, mean and spread over seeds, as a PNG."""
    seeds = len({run.seed for run in runs})
    title = f"{name}: mean and spread over {seeds} seeds" if seeds > 1 else f"{name}: one seed"
    lines = []
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        mine = [run for run in runs if run.algorithm == algorithm]
        lines.append(Line(algorithm, [run.accuracy for run in mine], [run.nll for run in mine]))
    accuracy_and_nll(lines, title, path)
