"""The report of a model that predicts: one HTML page that needs nothing beside it.

It tells what the model's card and history tell, and no more: sums that the sites have agreed to.
"""

import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlap import __version__
from fedlap.engines.scores import BINS
from fedlap.regression.report import figures
from fedlap.regression.report.assessment import Calibration, wilson
from fedlap.regression.report.markup import (
    Markup,
    count,
    document,
    facts,
    joined,
    paragraphs,
    table,
    tag,
    value,
)
from fedlap.regression.report.words import listed, percent, quantity
from fedlap.study.agreement.contract import Study
from fedlap.study.protocol.checkpoint import RoundReport
from fedlap.study.protocol.coordinator import Outcome
from fedlap.study.protocol.metrics import Score

UNTOLD = (
    "a site says nothing of them where test_fraction is 0, where it holds back fewer than minimum_rows, where few of "
    "them decide, or where its policy has metrics = false"
)


def predictor_page(study: Study, outcome: Outcome) -> str:
    """The report as a text."""
    score = outcome.history[-1].score or Score(0, None, None)
    sections = {
        "What was fitted": _fitted(study, outcome, score),
        "The sites": _sites(outcome),
        "Scores of the last model": _scores(score),
        "Reliability": _reliability(score),
        "Round by round": _rounds(outcome.history),
        "Versions and digest": _versions(study, outcome),
    }
    return document(study.name, f"A model that predicts {study.target.name}, fitted over sites", sections)


def cells_of(score: Score) -> Calibration | None:
    """The cells of a reliability diagram, with Wilson's intervals of what is right in each; None without any."""
    if not score.reliability:
        return None
    low, high, rows, confidence, right = np.array(score.reliability, np.float64).T
    share = right / rows
    return Calibration(low, high, rows, confidence / rows, share, *wilson(share, rows))


def _fitted(study: Study, outcome: Outcome, score: Score) -> Markup:
    name, kept = study.method.algorithm_name, [n for site, n in outcome.sizes.items() if site not in outcome.without]
    sites = quantity(len(kept), "site")
    return facts(
        {
            "predicted": f"{study.target.name}: {listed(list(map(str, study.target.classes)))}",
            "from": quantity(len(study.columns), "column"),
            "model": _described(study.method.model),
            "algorithm": _described({"name": name, **study.method.algorithms[name]}),
            "sites": f"{sites} to the end, of {len(outcome.sizes)}" if outcome.without else sites,
            "rows": f"{sum(kept):,} to train on, {score.test_rows:,} held back and reported on",
            "rounds": len(outcome.history),
        }
    )


def _described(settings: dict[str, Any]) -> str:
    """A name, and its arguments in brackets."""
    given = [f"{key} = {each}" for key, each in settings.items() if key != "name"]
    return f"{settings['name']} ({', '.join(given)})" if given else str(settings["name"])


def _sites(outcome: Outcome) -> Markup:
    took_part = {name: sum(name in each.members for each in outcome.history) for name in outcome.sizes}
    lines = [[name, count(rows), count(took_part[name])] for name, rows in outcome.sizes.items()]
    left = [
        f"{name} was left out for good after {quantity(how['after_round'], 'round')}: {how['how']}."
        for name, how in outcome.without.items()
    ]
    caption = f"Sites, and in how many of {quantity(len(outcome.history), 'round')} each has taken part"
    return joined([table(caption, ["site", "rows to train on", "rounds"], lines), paragraphs(left)])


def _scores(score: Score) -> Markup:
    if not score.test_rows:
        return paragraphs([f"Nothing is known of rows held back: {UNTOLD}."])
    bound = "–" if score.auc_bound is None else f"{score.auc_bound:.3f}"
    shown = {
        "accuracy": (score.accuracy, "how often the likeliest class is the true one"),
        "NLL": (score.nll, "mean negative log-likelihood of the true class; smaller is better"),
        "Brier score": (score.brier, "squared distance of the probabilities from the truth, all classes; from 0 to 2"),
        "ECE": (score.ece, f"mean distance of confidence from what is right, over {score.ece_bins} of {BINS} bins"),
        "AUC": (
            score.auc,
            f"of {score.auc_rows} rows; their exact AUC is no further away than {bound}",
        ),
    }
    known = {name: (x, words) for name, (x, words) in shown.items() if x is not None}
    lines = [[name, value(x), words] for name, (x, words) in known.items()]
    told = [
        f"On {quantity(score.test_rows, 'row')} held back at the sites, which the model was not fitted to. The "
        "probabilities are those at the model's weights, not averaged over its posterior."
    ]
    if lacking := [name for name in shown if name not in known]:
        told.append(f"Not known: {listed(lacking)}. An AUC is of two classes, each with minimum_rows rows at a site.")
    if score.ece is not None:
        told.append(
            "Sites round their NLL, Brier score and mean confidences; the ECE may miss an error within merged bins."
        )
    return joined([paragraphs(told), table("Scores on held-back rows", ["score", "value", "what it is"], lines)])


def _reliability(score: Score) -> Markup:
    cells = cells_of(score)
    if cells is None:
        return paragraphs([f"There is no reliability diagram, as no site has told its cells: {UNTOLD}."])
    sure = float(cells.rows @ cells.predicted / cells.rows.sum())
    right = float(cells.rows @ cells.observed / cells.rows.sum())
    off = int(((cells.predicted < cells.lower) | (cells.predicted > cells.upper)).sum())
    told = (
        f"On average the likeliest class has a probability of {sure:.3f} and is the true one for {percent(right)} of "
        f"the rows. In {off} of {quantity(len(cells.rows), 'cell')} the 95 % interval excludes the confidence."
    )
    caption = (
        f"{quantity(len(cells.rows), 'cell')} left of {BINS} bins: small ones were merged with their neighbours at "
        "the sites, and bins that any site has merged across are one here. Below the diagonal the model is too sure, "
        "above it not sure enough. Lines are Wilson's 95 % intervals."
    )
    picture = tag("figure", figures.reliability(cells), tag("figcaption", caption))
    columns = ["probability", "rows", "confidence", "share right", "lower", "upper"]
    lines = [
        [f"{low:.3f} to {high:.3f}", count(rows), *map(value, rest)]
        for low, high, rows, *rest in zip(*cells, strict=True)
    ]
    drawn = tag("div", picture, table("Cells of the diagram", columns, lines), class_="beside")
    return joined([paragraphs([told]), drawn])


def _rounds(history: Sequence[RoundReport]) -> Markup:
    scores = [each.score or Score(0, None, None) for each in history]
    accuracies, losses = ([_number(getattr(each, name)) for each in scores] for name in ("accuracy", "nll"))
    parts = []
    if any(map(math.isfinite, losses)):
        told = (
            "The model after each round, on the rows held back by the sites that answered the next request. Sites "
            "round their NLL and, in all but the last report, how many rows are right: small steps may be rounding."
        )
        parts = [paragraphs([told]), tag("figure", figures.scores(accuracies, losses))]
    lines = [
        [str(each.round), count(len(each.members)), count(score.test_rows), value(accuracy), value(loss)]
        for each, score, accuracy, loss in zip(history, scores, accuracies, losses, strict=True)
    ]
    return joined([*parts, table("By round", ["round", "sites", "rows held back", "accuracy", "NLL"], lines)])


def _number(x: float | None) -> float:
    return math.nan if x is None else float(x)


def _versions(study: Study, outcome: Outcome) -> Markup:
    pairs = {
        "fedlap": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "run": tag("code", outcome.run),
        "digest": tag("code", study.digest),
    }
    told = "The digest is that of the study, which all sites share. This page is made of card.json and history.json."
    return joined([facts(pairs), paragraphs([told])])
