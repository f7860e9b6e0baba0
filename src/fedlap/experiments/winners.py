"""What a sweep comes to: each algorithm's winning setting, and how good it is on the test set."""

from typing import NamedTuple

from fedlap.experiments.choose import HONEST, PAPER, choose, finals, in_part, value
from fedlap.experiments.summary import caption, metrics, spread

HEADS = ("algorithm", "setting", "accuracy %", "NLL", "chosen from", "diverged")
PART = " (part)"  # what a winner of [sweep.part] has behind its algorithm


class Winner(NamedTuple):
    """A setting that won, with the metrics of its runs on all rows."""

    algorithm: str
    setting: dict
    settings: int  # that it was chosen from
    seeds: int
    diverged: int  # of these seeds
    accuracy: tuple[float, float]
    nll: tuple[float, float]
    lost: int  # runs of all these settings that diverged
    runs: int  # how many there were


def winners(sweep, results):
    """By validation where rows were held out, else by the test set; of the whole grid, then of a part that has its own.

    An algorithm that has not run has none.
    """
    found = []
    for algorithm in sweep.algorithms:
        found.append(_winner(sweep, results, algorithm, ""))
        if algorithm in sweep.part:
            found.append(_winner(sweep, in_part(results, sweep), algorithm, PART))
    return [each for each in found if each is not None]


def _winner(sweep, results, algorithm, suffix):
    mine = [each for each in results if each.algorithm == algorithm]
    searched = sweep.validation > 0 and any(each.held_out > 0 for each in mine)
    chosen = choose(mine, algorithm, HONEST if searched else PAPER, sweep.finals)
    runs = [] if chosen is None else finals(mine, algorithm, chosen.setting)
    if not runs:
        return None
    accuracies, nlls = zip(*(value(run.curves["test"]) for run in runs), strict=True)
    return Winner(
        algorithm=algorithm + suffix,
        setting=chosen.setting,
        settings=chosen.settings,
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        accuracy=spread(accuracies),
        nll=spread(nlls),
        lost=sum(run.diverged for run in mine),
        runs=len(mine),
    )


def cells(winner):
    """A winner as text, below HEADS."""
    setting, lost = setting_text(winner.setting) or "as in the file", f"{winner.lost} of {winner.runs}"
    return [winner.algorithm, setting, *metrics(winner), str(winner.settings), lost]


def words(sweep, found):
    """What the numbers are, and how the settings were chosen."""
    if all(winner.settings == 1 for winner in found):
        chosen = "one setting each, nothing was chosen"
    elif sweep.validation > 0:
        chosen = f"chosen by accuracy on {100 * sweep.validation:g} % of each client's rows, held out of its training"
    else:
        chosen = "chosen by accuracy on the test set itself, which flatters; validation in [sweep] would not"
    return f"{caption(max(winner.seeds for winner in found))}; {chosen}"


def setting_text(setting):
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in setting.items()
    )
