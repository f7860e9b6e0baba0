"""How it went: the last sections of the report."""

import math
import platform
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy

from fedlap import __version__
from fedlap.errors import ConfigError, DataError
from fedlap.regression.fit import EXACT, SitesFit
from fedlap.regression.report import assessment as held
from fedlap.regression.report import figures, traffic
from fedlap.regression.report.assessment import Assessment, ResidualBins, Unassessed
from fedlap.regression.report.markup import Markup, count, facts, joined, paragraphs, table, tag, value
from fedlap.regression.report.words import Subject, listed, percent, quantity
from fedlap.regression.summary import label, number

ACROSS = 8  # sites in one table: more do not fit on a sheet of paper
FAR = 1.0  # standard errors: a change that is worth a second look
SOME = 20  # of the thresholds of a ROC curve stand in its table


class Contributions(NamedTuple):
    """Fits without one site each, and why some could not be had."""

    without: Mapping[str, SitesFit]
    refused: Mapping[str, str]


def contributions(fit: SitesFit) -> Contributions:
    """Leave every site out once."""
    without, refused = {}, {}
    for site in fit.regression.rows:
        try:
            without[site] = fit.without(site)
        except (ConfigError, DataError) as error:
            refused[site] = str(error)
    return Contributions(without, refused)


def convergence(fit: SitesFit) -> Markup:
    """Loss and decrement by round."""
    rounds = fit.optimum.rounds
    last = rounds[-1].decrement / math.sqrt(fit.dispersion)
    sentences = [
        f"The rounds have converged after {fit.rounds}: by the last one's measure, another would move no coefficient "
        f"by more than about {last:.1g} of its standard error."
        if fit.converged
        else f"The rounds have NOT converged after {fit.rounds}. Do not use the estimates."
    ]
    if len(fit.regression.rows) > 1:
        sentences.append(
            "The loss is the negative log-likelihood of all rows, but for constants. Newton's decrement, made of what "
            "all sites say at the same weights, is how far away its minimum still is."
        )
    risen = [place for place, each in enumerate(rounds, 1) if each.note]
    if risen:
        sentences.append(f"In round {listed([str(place) for place in risen])} the loss rose and a step was taken back.")
    noted = bool(risen)
    lines = [
        [str(place), value(each.loss, f"{each.loss:.8g}"), value(each.decrement, f"{each.decrement:.2e}")]
        + ([each.note] if noted else [])
        for place, each in enumerate(rounds, 1)
    ]
    picture = figures.convergence([each.loss for each in rounds], [each.decrement for each in rounds])
    columns = ["round", "loss", "decrement", *(["note"] if noted else [])]
    return joined([paragraphs(sentences), tag("figure", picture), table("By round", columns, lines)])


# Held-out rows --------------------------------------------------------------------------------------------------------


def assessed(result: Assessment | Unassessed | None, of: Subject) -> Markup:
    """How well rows are predicted that the fit has not seen."""
    if result is None:
        return paragraphs(["No rows were held out."])
    if isinstance(result, Unassessed):
        return paragraphs([f"No rows could be held out: {result.reason.rstrip('.')}."])
    parts = [paragraphs([_held(result)]), table("Rows by site", ["site", "fitted", "held out"], _split(result))]
    if result.bins is not None:
        parts += _probabilities(result, result.bins)
    elif result.residuals is not None:
        parts += _numbers(result, result.residuals, of)
    else:
        parts += _levels(result)
    return joined(parts)


def _held(result: Assessment) -> str:
    rest, out = sum(result.fitted.values()), sum(result.held_out.values())
    return (
        f"For this section alone {quantity(out, 'row')} were held out, drawn at every site with seed {result.seed}; "
        f"the same model was fitted to the other {quantity(rest, 'row')}. It shows how such a model predicts new rows "
        "of the same sites, not rows of others. Sites gave sums and counts by bin."
    )


def _split(result: Assessment) -> list[list[object]]:
    names = dict.fromkeys([*result.fitted, *result.held_out])
    return [[name, count(result.fitted.get(name, 0)), count(result.held_out.get(name, 0))] for name in names]


def _probabilities(result: Assessment, fine: held.Bins) -> list[Markup]:
    bins, curve = held.calibration(fine), held.roc(fine)
    outside = int(((bins.predicted < bins.lower) | (bins.predicted > bins.upper)).sum())
    base = fine.events.sum() / fine.weight.sum()
    told = [
        f"Brier score {result.mean_square:.4f} (0 is perfect; {base * (1 - base):.4f} is what the share of all, "
        f"{percent(base)}, said for everybody would get), log loss {result.mean_loss:.4f}.",
        f"Calibration: in {outside} of {quantity(len(bins.rows), 'bin')} the mean prediction is outside the interval "
        "of what was observed; about one of twenty would be so by chance.",
    ]
    lines = [
        [f"{low:.1f} to {high:.1f}", count(n), *map(value, rest)] for low, high, n, *rest in zip(*bins, strict=True)
    ]
    columns = ["predicted", "rows", "mean prediction", "observed share", "95 % from", "to"]
    pictures = [tag("figure", figures.calibration(bins))]
    tables = [table("Calibration", columns, lines)]
    if curve is None:
        told.append("All held-out outcomes are the same, so there is no ROC curve.")
    else:
        told.append(
            f"AUC {curve.auc:.4f}, exact to ±{curve.bound:.1g}: of two held-out rows, one with the outcome and one "
            f"without, the first has the higher prediction in about {percent(curve.auc)} of pairs (0.5 is chance)."
        )
        pictures.append(tag("figure", figures.roc(curve)))
        tables.append(_thresholds(fine, curve))
    return [paragraphs(told), tag("div", *pictures, class_="pair"), tag("div", *tables, class_="pair")]


def _thresholds(fine: held.Bins, curve: held.Roc) -> Markup:
    """The curve from the highest threshold to the lowest, at some of the edges."""
    every = len(fine.weight) // SOME
    thresholds = fine.edges[::-1]
    lines = [
        [f"{thresholds[k]:.2f}", value(curve.true_positive[k]), value(1 - curve.false_positive[k])]
        for k in range(0, len(thresholds), every)
    ]
    return table("ROC curve", ["prediction above", "sensitivity", "specificity"], lines)


def _numbers(result: Assessment, sums: ResidualBins, of: Subject) -> list[Markup]:
    n, fitted, mean, square = (part[sums.weight > 1] for part in sums[1:])
    fitted, mean, square = fitted / n, mean / n, square / n
    spread = np.sqrt(np.maximum(square - mean**2, 0) * n / (n - 1))
    reach = 1.96 * spread / np.sqrt(n)
    outside = int((np.abs(mean) > reach).sum())
    total = math.sqrt(sums.square.sum() / sums.weight.sum())
    told = [
        f"Root mean squared error {number(math.sqrt(result.mean_square))}; the outcomes' own standard deviation is "
        f"{number(math.sqrt(result.spread))}"
        + (
            f", so the prediction explains {percent(1 - result.mean_square / result.spread)} of their variance."
            if 0 < result.mean_square < result.spread
            else "."
        ),
        f"Residuals are counted in standard deviations that the model expects; theirs is {total:.2f}, where 1 is what "
        "the model says.",
        f"In {outside} of {quantity(len(n), 'bin')} the mean residual is further from 0 than 95 of 100 would be if "
        "the means were right; a curve in the points says that the shape of the model is wrong.",
    ]
    picture = tag("figure", figures.residuals(fitted, mean, reach, of.link == "log"))
    columns = ["bin", "rows", "mean fitted", "mean residual", "expected within ±", "standard deviation"]
    lines = [
        [str(k), count(rows), *map(value, rest)]
        for k, (rows, *rest) in enumerate(zip(n, fitted, mean, reach, spread, strict=True), 1)
    ]
    return [paragraphs(told), picture, table("Residuals by bin of the linear predictor", columns, lines)]


def _levels(result: Assessment) -> list[Markup]:
    told = [
        f"The likeliest level was the true one for {percent(result.total.right / result.total.rows)} of the held-out "
        f"rows. Log loss {result.mean_loss:.4f}; Brier score, summed over levels, {result.mean_square:.4f}."
    ]
    return [paragraphs(told)]


# Who matters ----------------------------------------------------------------------------------------------------------


def who_matters(fit: SitesFit, found: Contributions, shares: Mapping[str, float]) -> Markup:
    """What each site changes, and its share of what the columns explain."""
    parts = [tag("h3", "Without one site")]
    if found.without:
        moved = {site: _moved(fit, other) for site, other in found.without.items()}
        site = max(moved, key=lambda each: float(np.abs(moved[each]).max()))
        place = int(np.abs(moved[site]).argmax())
        told = (
            f"Each site was left out once, as if it had never taken part. The largest change is that of "
            f"{label(fit.index[place])} without {site}: {moved[site][place]:+.2f} standard errors of the pooled fit. "
            f"Marked are changes of {FAR:g} or more."
        )
        parts += [paragraphs([told]), *_change_tables(fit, moved)]
    parts += [paragraphs([f"{site} cannot be left out: {why}."]) for site, why in found.refused.items()]
    parts.append(tag("h3", "Shares of what was learned"))
    parts.append(_shapley(fit, shares))
    return joined(parts)


def _moved(fit: SitesFit, other: SitesFit) -> np.ndarray:
    return (other.params.to_numpy() - fit.params.to_numpy()) / fit.bse.to_numpy()


def _change_tables(fit: SitesFit, moved: Mapping[str, np.ndarray]) -> list[Markup]:
    names = list(moved)
    tables = []
    for start in range(0, len(names), ACROSS):
        some = names[start : start + ACROSS]
        lines = [[label(name), *(_change(moved[site][j]) for site in some)] for j, name in enumerate(fit.index)]
        caption = "Change of each coefficient without a site, in standard errors"
        tables.append(table(caption, ["coefficient", *(f"without {site}" for site in some)], lines, "across"))
    return tables


def _change(x: float) -> Markup:
    return tag("td", value(x, f"{x:+.2f}"), class_="strong" if abs(x) >= FAR else None)


def _shapley(fit: SitesFit, shares: Mapping[str, float]) -> Markup:
    gain = sum(shares.values())
    names, values = list(shares), list(shares.values())
    if len(names) == 1:
        return paragraphs([f"There is one site; what is gained over the null model, {gain:.4g}, is its own."])
    how = "" if len(names) <= EXACT else " With so many sites they are means over orders drawn at random."
    told = (
        f"All columns together raise the log-likelihood of all rows by about {gain:.4g} over a model with intercepts "
        "alone. Shapley values divide this gain among the sites by what each adds to the others, over all orders in "
        f"which they might have joined.{how} A value below 0 is a site whose rows make the fit worse for the others. "
        "It says how much a site changes the fit, not how good its data are."
    )
    picture = figures.bars(names, values, "Shapley values of the sites", "gain in log-likelihood")
    lines = [[n, value(v), value(v / gain, f"{100 * v / gain:.1f} %") if gain > 0 else "–"] for n, v in shares.items()]
    columns = ["site", "Shapley value", "share of the gain"]
    return joined([paragraphs([told]), tag("figure", picture), table("Shapley values", columns, lines)])


# What left ------------------------------------------------------------------------------------------------------------


def what_left(fit: SitesFit, found: Contributions, result: Assessment | Unassessed | None) -> Markup:
    """What left each site, and what never did."""
    taken = {site: other.rounds for site, other in found.without.items()}
    null_rounds = len(fit.regression.null_optimum().rounds)
    parcels = {}
    for site in fit.regression.rows:
        parcels[site] = [*traffic.of_fit(fit), *traffic.of_contributions(fit, site, taken)]
        parcels[site] += traffic.of_shapley(fit, null_rounds)
        if isinstance(result, Assessment):
            parcels[site] += traffic.of_assessment(fit, result)
    first = next(iter(parcels))
    lines = [
        [each.what, count(each.times), count(each.each.down), count(each.each.up), count(each.down), count(each.up)]
        for each in parcels[first]
        if each.times
    ]
    columns = ["message", "times", "numbers to the site", "numbers from it", "bytes to the site", "bytes from it"]
    totals = [
        [
            site,
            count(sum(each.down for each in some)),
            count(sum(each.up for each in some)),
            count(fit.regression.rows[site]),
        ]
        for site, some in parcels.items()
    ]
    told = [
        f"Counted from the shapes of what is said, {traffic.BYTES} bytes a number, without what a network adds. With "
        f"{quantity(len(fit.optimum.w), 'coefficient')} P, a round takes P + P² numbers to a site (weights and their "
        "precision) and 1 + 2P + P² from it (loss, score and factor).",
        "No row left any site, nor the prediction of one: what left are sums and means over rows. Sums over few rows, "
        "or with as many coefficients as rows, can still tell much about single ones; this report is no proof "
        "against that.",
        "Before the fit, sites agreed on columns and told their kinds, levels with counts, and ranges: the smallest "
        "and the largest value are those of rows. This is not counted here.",
    ]
    if isinstance(result, Assessment) and result.small:
        told.append(
            f"In {quantity(result.small, 'bin')} of some site's held-out rows there were fewer than {held.SMALL} rows: "
            "such a bin comes near to telling the outcome of one."
        )
    everything = ["site", "bytes to the site", "bytes from it", "rows that stayed"]
    messages = table(f"Messages between {first} and the others", columns, lines)
    return joined([paragraphs(told), messages, table("All of it", everything, totals)])


def versions(digest: str) -> Markup:
    """What it was made with, and a mark of what was fitted."""
    pairs = {
        "fedlap": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "digest": tag("code", digest),
    }
    told = (
        "The digest is the SHA-256 of the formula, the family, the options and the sites with their numbers of rows. "
        "Two reports with the same digest are of the same question, though perhaps of other rows."
    )
    return joined([facts(pairs), paragraphs([told])])
