"""The summary of results on disk: each algorithm's runs on all rows, as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlap.experiments.choose import HONEST, PAPER, choose, finals, in_part, value
from fedlap.experiments.plots import Line, accuracy_and_nll
from fedlap.experiments.results import Result
from fedlap.experiments.sweep import Sweep
from fedlap.settings.arguments import Table

PART = " (part)"  # what a winner of [sweep.part] has behind its algorithm


class Winner(NamedTuple):
    """An algorithm's setting, the only one or the one that won, with its runs on all rows."""

    algorithm: str
    setting: Table
    settings: int  # that it was chosen from
    runs: list[Result]  # one a seed
    tried: int  # runs of all these settings
    lost: int  # how many of those diverged

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.runs)

    @property
    def diverged(self) -> int:
        """The number of these seeds that diverged."""
        return sum(run.diverged for run in self.runs)

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean and standard deviation of the test accuracy over the seeds, at the end."""
        return spread([value(run.curves["test"])[0] for run in self.runs])

    @property
    def nll(self) -> tuple[float, float]:
        """Mean and standard deviation of the test NLL over the seeds, at the end."""
        return spread([value(run.curves["test"])[1] for run in self.runs])

    @property
    def rounds(self) -> int:
        """The number of rounds of the first seed."""
        return len(self.runs[0].curves["test"].nll)

    @property
    def seconds(self) -> float:
        """The mean time of a run; where runs were one program, its share of what that took."""
        return sum(run.seconds for run in self.runs) / len(self.runs)

    def reached(self, target: float) -> tuple[float, float] | None:
        """Mean and standard deviation of the rounds to a test accuracy; None if a seed never reached it."""
        rounds = [first_round(run.curves["test"].accuracy, target) for run in self.runs]
        reached = [round for round in rounds if round is not None]
        return spread(reached) if len(reached) == len(rounds) else None


def summarise(sweep: Sweep, results: list[Result]) -> list[Winner]:
    """The winner of each algorithm of which some runs on all rows are there, in the order of the file.

    A grid's winner is chosen by validation where rows were held out, else by the test set; of the whole grid, then of
    a part that has its own.
    """
    results = sweep.select(results)
    entries = []
    for algorithm in sweep.algorithms:
        entries.append(_winner(sweep, results, algorithm, ""))
        if algorithm in sweep.part:
            entries.append(_winner(sweep, in_part(results, sweep), algorithm, PART))
    return [winner for winner in entries if winner is not None]


def _winner(sweep: Sweep, results: list[Result], algorithm: str, suffix: str) -> Winner | None:
    """The winner of an algorithm; None if its runs on all rows are not there."""
    tried = [run for run in results if run.algorithm == algorithm]
    searched = sweep.validation > 0 and any(run.held_out > 0 for run in tried)
    chosen = choose(tried, algorithm, HONEST if searched else PAPER, sweep.finals)
    if chosen is None:
        return None
    runs = finals(tried, algorithm, chosen.setting)
    if not runs:
        return None
    lost = sum(run.diverged for run in tried)
    return Winner(algorithm + suffix, chosen.setting, chosen.settings, runs, len(tried), lost)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over the seeds."""
    return float(np.mean(values)), float(np.std(values))


def first_round(accuracy: Sequence[float | None], target: float) -> int | None:
    """The first round at which the target is reached, or None."""
    reached = [round for round, value in enumerate(accuracy, start=1) if value is not None and value >= target]
    return reached[0] if reached else None


# As text ------------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A table of texts, with a title."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown, without its title."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def as_text(sweep: Sweep, winners: list[Winner]) -> Text:
    """The table of winners: of a grid with what they were chosen from, else with rounds and seconds."""
    title = caption(max(winner.seeds for winner in winners))
    if sweep.is_grid:
        heads = ["algorithm", "setting", "accuracy %", "NLL", "chosen from", "diverged"]
        return Text(f"{title}; {_choice(sweep, winners)}", heads, [_grid_cells(winner) for winner in winners])
    target = sweep.table.get("train", {}).get("target_accuracy")
    to_target = [] if target is None else [f"rounds to {100 * target:g} %"]
    heads = ["algorithm", "accuracy %", "NLL", *to_target, "rounds", "seconds"]
    return Text(title, heads, [_run_cells(winner, target) for winner in winners])


def caption(seeds: int) -> str:
    """The caption of a table: what its numbers are."""
    over = "mean (standard deviation) over seeds" if seeds > 1 else "one seed"
    return f"test set: {over}, last three rounds"


def _choice(sweep: Sweep, winners: list[Winner]) -> str:
    """The way in which the settings were chosen."""
    if all(winner.settings == 1 for winner in winners):
        return "one setting each, nothing was chosen"
    if sweep.validation > 0:
        return f"chosen by accuracy on {100 * sweep.validation:g} % of each client's rows, held out of its training"
    return "chosen by accuracy on the test set itself, which flatters; validation in [sweep] would not"


def _grid_cells(winner: Winner) -> list[str]:
    setting, lost = setting_text(winner.setting) or "as in the file", f"{winner.lost} of {winner.tried}"
    return [winner.algorithm, setting, *_metrics(winner), str(winner.settings), lost]


def _run_cells(winner: Winner, target: float | None) -> list[str]:
    texts = [winner.algorithm, *_metrics(winner)]
    if target is not None:
        reached = winner.reached(target)
        texts.append("–" if reached is None else _number(reached, 0, winner.seeds))
    return [*texts, str(winner.rounds), f"{winner.seconds:.1f}"]


def _metrics(winner: Winner) -> list[str]:
    """Accuracy in percent, and NLL."""
    if winner.diverged:
        return [f"{winner.diverged} of {winner.seeds} diverged", "–"]
    mean, deviation = winner.accuracy
    return [_number((100 * mean, 100 * deviation), 1, winner.seeds), _number(winner.nll, 3, winner.seeds)]


def _number(spread: tuple[float, float], digits: int, seeds: int) -> str:
    """A mean with its deviation, which one seed has none of."""
    mean, deviation = (f"{value:.{digits}f}" for value in spread)
    return f"{mean} ({deviation})" if seeds > 1 else mean


def setting_text(setting: Table) -> str:
    """A setting in words: its keys, each with its value."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in setting.items()
    )


# As a picture -------------------------------------------------------------------------------------------------------


def curves(winners: list[Winner], name: str, path: Path) -> None:
    """Draw accuracy and NLL over rounds, mean and spread over seeds, as a PNG."""
    seeds = max(winner.seeds for winner in winners)
    title = f"{name}: mean and spread over {seeds} seeds" if seeds > 1 else f"{name}: one seed"
    tests = [(winner.algorithm, [run.curves["test"] for run in winner.runs]) for winner in winners]
    lines = [Line(label, [curve.accuracy for curve in of], [curve.nll for curve in of]) for label, of in tests]
    accuracy_and_nll(lines, title, path)
