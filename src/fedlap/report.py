"""What came out: mean and spread over the seeds that ran, as numbers, a table and a picture."""

from typing import NamedTuple

import numpy as np

LAST = 3  # rounds averaged for "the accuracy at the end", as in the paper's tables


class Row(NamedTuple):
    algorithm: str
    seeds: int
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
    import matplotlib  # here, so that training does not wait for a plotting library

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(run.algorithm for run in runs))
    colours = dict(zip(names, plt.get_cmap("tab10").colors * 3, strict=False))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axis, quantity, label, scale in zip(
        axes, ("accuracy", "nll"), ("test accuracy, %", "test negative log-likelihood"), (100, 1), strict=True
    ):
        for name in names:
            values = scale * np.array([getattr(run, quantity) for run in runs if run.algorithm == name])
            mean, deviation, rounds = values.mean(0), values.std(0), np.arange(1, values.shape[1] + 1)
            if len(rounds) == 1:  # a one-shot method: its answer, beside the others' paths
                axis.errorbar(rounds, mean, deviation, marker="D", capsize=3, color=colours[name], label=name)
                continue
            axis.plot(rounds, mean, color=colours[name], label=name)
            axis.fill_between(rounds, mean - deviation, mean + deviation, color=colours[name], alpha=0.15, linewidth=0)
        axis.set(xlabel="communication round", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, ncols=2)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
