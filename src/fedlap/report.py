"""What came out: mean and spread over the seeds that ran, as numbers, a table and a picture."""

from typing import NamedTuple

import numpy as np

from .plotting import Line, accuracy_and_nll

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
    texts = [
        row.algorithm,
        "{:.1f} ({:.1f})".format(*(100 * value for value in row.accuracy)),
        "{:.3f} ({:.3f})".format(*row.nll),
    ]
    if row.diverged:
        texts[1:] = [f"{row.diverged} of {row.seeds} diverged", "–"]
    if target is not None:
        texts.append("–" if row.reached is None else "{:.0f} ({:.0f})".format(*row.reached))
    return [*texts, str(row.rounds), f"{row.seconds:.1f}"]


def heads(target):
    wanted = [] if target is None else [f"rounds to {100 * target:g} %"]
    return ["algorithm", "accuracy %", "NLL", *wanted, "rounds", "seconds"]


def markdown(rows, target):
    lines = [heads(target), ["---"] * len(heads(target)), *(cells(row, target) for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def curves(runs, title, path):
    """Accuracy and NLL over rounds, mean and spread over seeds, as a PNG."""
    lines = []
    for name in dict.fromkeys(run.algorithm for run in runs):
        mine = [run for run in runs if run.algorithm == name]
        lines.append(Line(name, [run.accuracy for run in mine], [run.nll for run in mine]))
    accuracy_and_nll(lines, title, path)
