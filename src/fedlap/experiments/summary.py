"""The summary of results on disk: each algorithm's chosen setting, its runs on all rows, as a table and a picture."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlap.experiments.plots import Line, accuracy_and_nll
from fedlap.experiments.results import Curve, Result
from fedlap.experiments.sweep import Sweep
from fedlap.settings import Table

# The choice of a setting: by the test set, as the paper seems to, or by rows held out, as one should ------------------

LAST = 3  # rounds averaged for "the accuracy at the end", as in the paper's tables
PAPER, HONEST = "paper", "honest"  # the best test value of the grid; the best validation value


class Chosen(NamedTuple):
    """A setting that won, with its score."""

    setting: Table
    score: float
    settings: int  # how many there were to choose from


def value(curve: Curve, round: int | None = None, last: int = LAST) -> tuple[float, float]:
    """Accuracy and NLL at a round: the mean over it and the two before, which evens out a single bad round."""
    window = slice(max(0, round - last), round) if round is not None else slice(-last, None)
    return _mean(curve.accuracy[window]), _mean(curve.nll[window])


def _mean(numbers: list[float | None]) -> float:
    """The mean; NaN of no numbers, or where one is missing."""
    known = [number for number in numbers if number is not None]
    return float(np.mean(known)) if known and len(known) == len(numbers) else np.nan


def choose(results: Iterable[Result], algorithm: str, way: str, finals: str) -> Chosen | None:
    """The winner among an algorithm's settings, by the mean over seeds at the last round; None if none was run.

    The honest way looks at validation curves only, and has no winner where one setting or none was searched. The
    paper's way looks at the test curves: of runs on all rows where every setting has them, otherwise of the search; it
    has no winner among several without a test set. Runs that diverged lose; ties go to the smaller NLL. Of a method
    that was changed, only its newest revision counts.
    """
    runs = [result for result in results if result.algorithm == algorithm]
    search, on_all_rows = [run for run in runs if run.held_out > 0], [run for run in runs if run.held_out == 0]
    if way == HONEST:
        judged, on = search, "validation"
    else:
        judged, on = search if search and finals == "winners" else on_all_rows, "test"
    newest = max((result.revision for result in judged), default=0)
    scores: dict[str, list[tuple[float, float]]] = {}
    for result in judged:
        if result.revision == newest:
            curve, seeds = result.curves.get(on, result.shown), scores.setdefault(_key(result), [])
            seeds.append((-np.inf, np.inf) if None in curve.nll else value(curve))
    if len(scores) < (2 if way == HONEST else 1):
        return None
    if len(scores) > 1 and not all(on in result.curves for result in judged):
        return None  # the training rows choose nothing
    fullest = max(len(seeds) for seeds in scores.values())
    ranked = {setting: np.mean(seeds, axis=0) for setting, seeds in scores.items() if len(seeds) == fullest}
    best = max(ranked, key=lambda setting: (ranked[setting][0], -ranked[setting][1]))
    return Chosen(json.loads(best), float(ranked[best][0]), len(ranked))


def _key(result: Result) -> str:
    return json.dumps(result.setting, sort_keys=True)


def winners(results: list[Result], sweep: Sweep) -> dict[str, list[Table]]:
    """Each algorithm's settings to train on all rows: the winners of both ways; all of them if nothing is chosen.

    Of the whole grid, and of the part of it that is chosen from by itself.
    """
    kept, part = {}, in_part(results, sweep)
    for algorithm in sweep.algorithms:
        if sweep.validation == 0 or len(sweep.settings(algorithm)) == 1:
            kept[algorithm] = sweep.settings(algorithm)
            continue
        chosen = [choose(of, algorithm, way, sweep.finals) for of in (results, part) for way in (PAPER, HONEST)]
        settings = [winner.setting for winner in chosen if winner is not None]
        kept[algorithm] = [setting for i, setting in enumerate(settings) if setting not in settings[:i]]
    return kept


def in_part(results: Iterable[Result], sweep: Sweep) -> list[Result]:
    """The results of the part of a grid that is chosen from by itself."""
    return [result for result in results if sweep.in_part(result.algorithm, result.setting)]


def finals(results: Iterable[Result], algorithm: str, setting: Table) -> list[Result]:
    """The runs on all rows of one setting, by seed."""
    runs = [r for r in results if r.algorithm == algorithm and r.held_out == 0 and r.setting == setting]
    return sorted(runs, key=lambda result: result.seed)


# The summary ----------------------------------------------------------------------------------------------------------

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
        return spread([value(run.shown)[0] for run in self.runs])

    @property
    def nll(self) -> tuple[float, float]:
        """Mean and standard deviation of the test NLL over the seeds, at the end."""
        return spread([value(run.shown)[1] for run in self.runs])

    def calibration(self, score: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds of a test "brier", "ece" or "auc"; NaN where a run has none."""
        curves = [getattr(run.shown, score) for run in self.runs]
        return spread([np.nan if curve is None else _mean(curve[-LAST:]) for curve in curves])

    @property
    def rounds(self) -> int:
        """The number of rounds of the first seed."""
        return len(self.runs[0].shown.nll)

    @property
    def seconds(self) -> float:
        """The mean time of a run; where runs were one program, its share of what that took."""
        return sum(run.seconds for run in self.runs) / len(self.runs)

    def reached(self, target: float) -> tuple[float, float] | None:
        """Mean and standard deviation of the rounds to a test accuracy; None if a seed never reached it."""
        rounds = [first_round(run.shown.accuracy, target) for run in self.runs]
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


CALIBRATION = {"Brier": "brier", "ECE": "ece", "AUC": "auc"}  # the heads of their columns
TEXTS = ("run", "algorithm", "setting")  # columns of text, which say what a row is of; the others are of numbers


class Text(NamedTuple):
    """A table of texts, with a title."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    def parts(self) -> tuple["Text", "Text"]:
        """Two tables of the same rows, for a narrow screen: calibration by itself, and in both what a row is of."""
        first = [place for place, head in enumerate(self.heads) if head not in CALIBRATION]
        second = [place for place, head in enumerate(self.heads) if head in TEXTS or head in CALIBRATION]
        part = lambda title, places: Text(title, *_columns(places, self.heads, self.rows))
        return part(self.title, first), part("", second)

    def markdown(self) -> str:
        """The table in Markdown, without its title."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _columns(places: list[int], heads: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    return [heads[place] for place in places], [[row[place] for place in places] for row in rows]


def as_text(sweep: Sweep, winners: list[Winner]) -> Text:
    """The table of winners: of a grid with what they were chosen from, else with rounds and seconds."""
    title = caption(max(winner.seeds for winner in winners), _tested(winners))
    if sweep.is_grid:
        heads = ["algorithm", "setting", "accuracy %", "NLL", *CALIBRATION, "chosen from", "diverged"]
        return Text(f"{title}; {_choice(sweep, winners)}", heads, [_grid_cells(winner) for winner in winners])
    target = sweep.table.get("train", {}).get("target_accuracy")
    to_target = [] if target is None else [f"rounds to {100 * target:g} %"]
    heads = ["algorithm", "accuracy %", "NLL", *CALIBRATION, *to_target, "rounds", "seconds"]
    return Text(title, heads, [_run_cells(winner, target) for winner in winners])


def caption(seeds: int, tested: bool = True) -> str:
    """The caption of a table: what its numbers are."""
    over = "mean (standard deviation) over seeds" if seeds > 1 else "one seed"
    return f"{'test set' if tested else 'no test set; on the training rows'}: {over}, last three rounds"


def _tested(winners: list[Winner]) -> bool:
    """Whether there is a test set."""
    return all("test" in run.curves for winner in winners for run in winner.runs)


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
    """Accuracy in percent, NLL, and calibration."""
    if winner.diverged:
        return [f"{winner.diverged} of {winner.seeds} diverged", *["–"] * (1 + len(CALIBRATION))]
    mean, deviation = winner.accuracy
    others = [winner.nll, *map(winner.calibration, CALIBRATION.values())]
    percent = _number((100 * mean, 100 * deviation), 1, winner.seeds)
    return [percent, *(_number(spread, 3, winner.seeds) for spread in others)]


def _number(spread: tuple[float, float], digits: int, seeds: int) -> str:
    """A mean with its deviation, which one seed has none of; a dash where there is none, as in files of old."""
    if np.isnan(spread[0]):
        return "–"
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
    tests = [(winner.algorithm, [run.shown for run in winner.runs]) for winner in winners]
    lines = [Line(label, [curve.accuracy for curve in of], [curve.nll for curve in of]) for label, of in tests]
    accuracy_and_nll(lines, title, path, of="test" if _tested(winners) else "training")
