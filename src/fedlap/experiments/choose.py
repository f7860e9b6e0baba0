"""Choice of a setting: by the test set, as the paper seems to, or by rows held out of each client, as one should."""

import json
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedlap.experiments.results import Curve, Result
from fedlap.experiments.sweep import Sweep
from fedlap.settings.arguments import Table

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
    paper's way looks at the test curves: of runs on all rows where every setting has them, otherwise of the search.
    Runs that diverged lose; ties go to the smaller NLL. Of a method that was changed, only its newest revision counts.
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
            curve, seeds = result.curves[on], scores.setdefault(_key(result), [])
            seeds.append((-np.inf, np.inf) if None in curve.nll else value(curve))
    if len(scores) < (2 if way == HONEST else 1):
        return None
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
