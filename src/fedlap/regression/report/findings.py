"""What was found: the first sections of the report."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import stats

from fedlap.regression.fit import SitesFit
from fedlap.regression.report import figures, words
from fedlap.regression.report.figures import Forest, Mark
from fedlap.regression.report.markup import Markup, count, facts, joined, paragraphs, table, tag, value
from fedlap.regression.report.words import Subject, listed, percent, quantity, spoken
from fedlap.regression.summary import label, p_value

LABELS = {"rows": "rows", "missing": "left out, a value missing", "events": "events", "mean": "mean outcome"}


def what(fit: SitesFit, of: Subject, said: Mapping[str, Any]) -> Markup:
    """What was fitted, by whom and to how much."""
    sites = list(fit.regression.rows)
    pairs: dict[str, object] = {
        "formula": tag("code", of.formula),
        "family": spoken(of.family),
        "link": of.link,
        **({"reference level": of.levels[0]} if of.levels else {}),
        "sites": listed(sites, 12),
        "rows": count(fit.nobs),
        "standard errors": fit.covariance_kind,
    }
    prior = getattr(fit, "prior", None)
    pairs["prior"] = "none" if prior is None else str(prior)
    pairs |= {
        "log-likelihood": value(fit.llf, f"{fit.llf:,.3f}"),
        "AIC": value(fit.aic, f"{fit.aic:,.2f}"),
        "BIC": value(fit.bic, f"{fit.bic:,.2f}"),
        "coefficients": count(len(fit.index)),
        **{name: str(each) for name, each in said.items()},
    }
    told = (
        f"A {spoken(of.family)} regression of {quantity(fit.nobs, 'row')} at {quantity(len(sites), 'site')}. The rows "
        "stayed where they are; the estimates are those that all rows in one place would give."
    )
    warning = (
        f"The rounds have NOT converged: after {fit.rounds} of them the estimates still move. Nothing below should be "
        "used."
    )
    return joined([tag("p", told) if fit.converged else tag("p", warning, class_="warning"), facts(pairs)])


def sites(fit: SitesFit, said: Mapping[str, Mapping[str, Any]]) -> Markup:
    """The rows of every site, and what was said of them."""
    rows = fit.regression.rows
    keys = list(dict.fromkeys(["rows", *(key for each in said.values() for key in each)]))
    told = {name: {"rows": rows[name], **said.get(name, {})} for name in rows}
    weighted = any(told[name]["rows"] != rows[name] for name in rows)
    columns = ["site", *(LABELS.get(key, key) for key in keys), *(["counted as"] if weighted else []), "share"]
    lines = [
        [
            name,
            *(_fact(told[name].get(key)) for key in keys),
            *([count(rows[name])] if weighted else []),
            value(rows[name] / fit.nobs, percent(rows[name] / fit.nobs)),
        ]
        for name in rows
    ]
    largest = max(rows, key=lambda name: rows[name])
    sentences = [f"{largest} has the most rows, {percent(rows[largest] / fit.nobs)} of all."]
    if len(set(rows.values())) == 1:
        sentences = ["All sites have as many rows."]
    if len(rows) == 1:
        sentences = ["There is one site, so this is an ordinary regression; nothing can be compared between sites."]
    if weighted:
        sentences.append("Rows count by their weights; “counted as” is what they add up to.")
    if any("missing" in each for each in said.values()):
        sentences.append(
            "Rows with a missing value in a column of the formula are left out. If what is missing has to do with the "
            "outcome, the estimates may be biased, and this report cannot tell."
        )
    return joined([paragraphs(sentences), table("Rows by site", columns, lines)])


def _fact(content: object) -> object:
    if isinstance(content, (int, float, np.number)) and not isinstance(content, bool):
        return count(float(content)) if float(content).is_integer() else value(float(content))
    return Markup("–") if content is None else str(content)


def coefficients(fit: SitesFit, of: Subject) -> Markup:
    """Every coefficient with its interval, and what it multiplies."""
    statistic = "t" if fit.degrees < np.inf else "z"
    columns = ["coefficient", "estimate", "standard error", statistic, "p", "95 % from", "to"]
    numbers = np.column_stack([fit.params, fit.bse, fit.tvalues, fit.pvalues, fit.conf_int()])
    lines = [
        [label(name), value(b), value(se), value(z, f"{z:.2f}"), value(p, p_value(p)), value(low), value(high)]
        for name, (b, se, z, p, low, high) in zip(fit.index, numbers, strict=True)
    ]
    parts = [table("Coefficients", columns, lines, "coefficients")]
    null = fit.regression.null
    if of.ratio:
        ratios = getattr(fit, "exp").to_numpy()  # noqa: B009
        lines = [
            [label(name), *(value(e, words.ratio(x)) for e, x in zip(row, (b, low, high), strict=True))]
            for name, row, (b, *_, low, high), free in zip(fit.index, ratios, numbers, null, strict=False)  # no shapes
            if not free
        ]
        if lines:
            names = ["coefficient", of.ratio, "95 % from", "to"]
            parts.append(table(f"{of.ratio.capitalize()}s: e to the power of each coefficient", names, lines, "ratios"))
    readings = [
        tag("li", words.reading(name, b, low, high, of, fit.index))
        for name, (b, *_, low, high), free in zip(fit.index, numbers, null, strict=True)
        if not free
    ]
    parts.append(tag("h3", "How to read them"))
    parts.append(tag("ul", *readings, class_="readings") if readings else paragraphs(["There is only an intercept."]))
    explained = [words.INTERVAL, words.P_VALUE]
    if getattr(fit, "prior", None) is not None:
        explained.append(
            "A prior pulls these estimates towards 0. Intervals and p-values take it for part of the model, so they "
            "need not cover as often as they say."
        )
    if null.any():
        explained.append("Intercepts and shapes are parts of the model that are not read as associations.")
    return joined([*parts, paragraphs(explained)])


def forests(fit: SitesFit, of: Subject) -> Markup:
    """A forest plot a coefficient, its numbers, and how far sites differ."""
    told = (
        "Each square is what one site's own rows say near the pooled estimate (one step of Newton's method from it); "
        "its size is the site's weight, its line the 95 % interval. The diamond is the pooled estimate. Dashed are "
        "meta-analyses of the squares: one effect for all sites (fixed), or one a site (random). An arrow is an "
        "interval that goes on."
    )
    tests = (
        "Q tests whether sites have the same coefficient; with few sites it finds little. I² is the share of the "
        "spread between sites that is not chance, τ² the variance between them."
    )
    parts = []
    for data, measured in _forests(fit, of):
        lines = [_line(mark, bool(data.ratio)) for mark in [*data.sites, data.pooled, *data.others]]
        columns = ["site", "estimate", "95 % from", "to", *([data.ratio] if data.ratio else []), "weight"]
        picture = tag("figure", figures.forest(data), tag("figcaption", measured))
        numbers = table(f"{data.name}, by site", columns, lines)
        parts.append(tag("div", tag("h3", data.name), tag("div", picture, numbers, class_="beside"), class_="together"))
    return joined([paragraphs([told, tests]), *parts])


def _forests(fit: SitesFit, of: Subject) -> Iterator[tuple[Forest, str]]:
    names = list(fit.regression.rows)
    own = fit.sites.to_numpy().reshape(len(names), len(fit.index), 3)
    pooled = np.column_stack([fit.params, fit.conf_int()])
    combined, mixed = fit.meta.to_numpy(), fit.heterogeneity
    z = float(stats.norm.isf(0.025))
    for j, name in enumerate(fit.index):
        marks = [_mark(site, own[k, j, 0], z * own[k, j, 1], own[k, j, 2]) for k, site in enumerate(names)]
        others = [
            _mark(f"meta, {kind}", combined[j, 2 * k], z * combined[j, 2 * k + 1], np.nan)
            for k, kind in enumerate(("fixed", "random"))
        ]
        free = bool(fit.regression.null[j])
        whole = Mark("pooled", *map(float, pooled[j]), weight=np.nan)
        data = Forest(label(name), marks, whole, others if len(names) > 1 else [], "" if free else of.ratio, not free)
        yield data, words.agreement_of_sites(*(float(mixed[key].iloc[j]) for key in ("Q", "df", "p", "I2", "tau2")))


def _mark(name: str, estimate: float, reach: float, weight: float) -> Mark:
    return Mark(name, float(estimate), float(estimate - reach), float(estimate + reach), float(weight))


def _line(mark: Mark, as_ratio: bool) -> list[object]:
    heading = tag("span", mark.name, class_="total") if mark.name == "pooled" else mark.name
    ratio = [value(np.exp(min(mark.estimate, 700)), words.ratio(mark.estimate))] if as_ratio else []
    cells = [value(mark.estimate), value(mark.low), value(mark.high), *ratio, value(mark.weight, percent(mark.weight))]
    return [heading, *cells]


def against_meta(fit: SitesFit) -> Markup:
    """What pooling changes, compared with a meta-analysis of the sites' estimates."""
    if len(fit.regression.rows) == 1:
        return paragraphs(["There is one site; a meta-analysis of it is the fit itself."])
    b, se = fit.params.to_numpy(), fit.bse.to_numpy()
    fixed, fixed_se, random, random_se = fit.meta.to_numpy().T
    distance, wider = (fixed - b) / se, fixed_se / se - 1
    columns = ["coefficient", "pooled", "standard error", "fixed", "standard error", "random", "standard error"]
    columns += ["fixed against pooled, in standard errors", "its standard error against pooled"]
    lines = [
        [label(name), *map(value, row[:6]), value(row[6], f"{row[6]:+.2f}"), value(row[7], f"{100 * row[7]:+.1f} %")]
        for name, *row in zip(fit.index, b, se, fixed, fixed_se, random, random_se, distance, wider, strict=True)
    ]
    sentences = []
    far = int(np.nanargmax(np.abs(distance))) if np.isfinite(distance).any() else 0
    if np.abs(distance[far]) < 5e-3:
        sentences.append("The two agree in every coefficient to a hundredth of a standard error.")
    elif np.isfinite(distance[far]):
        sentences.append(
            f"The two agree best where sites are large. They are furthest apart for {label(fit.index[far])}: a "
            f"meta-analysis would be {abs(distance[far]):.2f} pooled standard errors "
            f"{'higher' if distance[far] > 0 else 'lower'}."
        )
        sentences.append(
            f"Its standard errors (one effect for all sites) differ from the pooled ones by "
            f"{100 * np.nanmin(wider):+.1f} to {100 * np.nanmax(wider):+.1f} %."
        )
    sentences.append(
        "A meta-analysis by coefficient knows of each site an estimate and its standard error alone; the pooled fit "
        "also knows how the estimates hang together. Random effects answer another question: the mean over sites "
        "that each have a coefficient of their own."
    )
    if fit.covariance_kind != "model":
        sentences.append(f"Pooled standard errors are {fit.covariance_kind}; those of the sites are the model's.")
    return joined([paragraphs(sentences), table("Both estimates", columns, lines)])
