"""The report of a regression over sites: one page, whole and harmless, whose numbers are those of the fit."""

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from statsmodels.stats.proportion import proportion_confint

from fedlap.errors import ConfigError, DataError
from fedlap.regression import rounds
from fedlap.regression.model import fit_here
from fedlap.regression.report import assessment, traffic, words
from fedlap.regression.report.assessment import Assessment, Unassessed, hold_out
from fedlap.regression.report.drawing import linear_ticks, nice, power_ticks, ratio_ticks, short
from fedlap.regression.report.page import digest, page, write_report
from pages import Page
from regressions import FAMILIES, copied, fitted, inputs, site_rows

HARMFUL = "<script>alert('1')</script>&\"x"
FACTS = {"date": "2026-10-20", "by": "the coordinator"}
PARTS = [
    "What was fitted",
    "The sites",
    "Coefficients",
    "Sites beside each other",
    "Pooled against meta-analysis",
    "Convergence",
    "Predictions for rows held out",
    "Who matters",
    "What left each site",
    "Versions and digest",
]


def reported(name, **options):
    """A fit, what held-out rows say of it, and its page."""
    given = inputs(name, **options)
    result = hold_out(*copied(*given))
    fit = fit_here(*given)
    return fit, result, page(fit, title="A study", facts=FACTS, assessment=result)


# The page -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_stands_alone_and_is_well_formed(name, tmp_path):
    fit, result, text = reported(name)
    path = write_report(fit, tmp_path / "report.html", title="A study", facts=FACTS, assessment=result)
    assert path.read_text(encoding="utf-8") == text and path.stat().st_size < 3_000_000
    seen = Page(text)
    assert not re.search(r"https?://|url\(|@import|<script|javascript:|\bon\w+=", text)
    assert not {each for each, _, _ in seen.elements} & {"script", "link", "img", "iframe", "object", "use"}
    assert [text for text, path in seen.texts if path[-1:] == ("h2",)] == PARTS
    pictures = seen.within("svg", "title"), seen.within("svg", "desc")
    assert len(pictures[0]) >= len(fit.index) + 2 and set(pictures[0]) == set(pictures[1]) == {1}
    assert set(seen.within("table", "caption")) == {1}
    cells = [attributes for each, attributes, _ in seen.elements if each == "th"]
    assert {each.get("scope") for each in cells} == {"col", "row"}
    links = [attributes["href"] for each, attributes, _ in seen.elements if each == "a"]
    assert links == [f"#{attributes['id']}" for each, attributes, _ in seen.elements if each == "h2"]
    assert "nan" not in re.findall(r"[a-z]+", seen.said.lower())


def test_what_is_not_closed_is_noticed():
    with pytest.raises(AssertionError):
        Page("<p><b>text</p>")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_number_of_the_coefficients_is_the_fit_s(name):
    fit, _, text = reported(name)
    seen = Page(text).numbers("Coefficients")
    assert list(seen) == [": ".join(each) if isinstance(each, tuple) else each for each in fit.index]
    expected = np.column_stack([fit.params, fit.bse, fit.tvalues, fit.pvalues, fit.conf_int()])
    assert np.array_equal(list(seen.values()), expected)
    if not fit.family.ratio:
        assert "ratios: e to the power" not in text
        return
    ratios = Page(text).numbers(f"{fit.family.ratio.capitalize()}s: e to the power of each coefficient")
    assert np.array_equal(list(ratios.values()), fit.exp.to_numpy()[~fit.regression.null[: len(fit.exp)]])


def test_the_other_tables_are_the_fit_s():
    fit, _, text = reported("poisson")
    seen = Page(text)
    both = np.array(list(seen.numbers("Both estimates").values()))
    assert np.array_equal(both[:, :6], np.column_stack([fit.params, fit.bse, fit.meta]))
    assert np.allclose(both[:, 7], fit.meta["fixed_se"] / fit.bse - 1, rtol=1e-12)
    own, reach = seen.numbers("x1, by site"), norm.isf(0.025)
    for site in fit.regression.rows:
        estimate, se, weight = fit.sites.loc[(site, "x1")]
        ends = estimate - reach * se, estimate + reach * se
        assert own[site] == pytest.approx([estimate, *ends, np.exp(estimate), weight], rel=1e-12)
    changes = seen.numbers("Change of each coefficient without a site, in standard errors")
    for place, site in enumerate(fit.regression.rows):
        moved = (fit.without(site).params - fit.params) / fit.bse
        assert np.array_equal([changes[name][place] for name in fit.index], moved)
    assert [row[0] for row in seen.numbers("Shapley values").values()] == fit.shapley().tolist()
    assert [row[:2] for row in seen.numbers("By round").values()] == [[r.loss, r.decrement] for r in fit.optimum.rounds]


def test_text_is_escaped_wherever_it_stands():
    given = inputs("multinomial", names=["Intercept", HARMFUL, "x2"], levels=(HARMFUL, "b", f"{HARMFUL} 2"))
    rows = {f"{HARMFUL} {place}": part for place, part in enumerate(given[1].values())}
    fit = fit_here(given[0], rows)
    told = {site: {"rows": 5, HARMFUL: HARMFUL} for site in rows}
    facts = {HARMFUL: HARMFUL, "sites": told, "options": {HARMFUL: 1}}
    refused = Unassessed(f"column {HARMFUL} is constant")
    text = page(fit, title=HARMFUL, facts=facts, assessment=refused)
    seen = Page(text)
    assert "<script" not in text and not {"script"} & {each for each, _, _ in seen.elements}
    assert HARMFUL in seen.said
    harmless = Page(page(fitted("multinomial"), title="", facts={}, assessment=Unassessed("")))
    named = [{name for _, attributes, _ in each.elements for name in attributes} for each in (seen, harmless)]
    assert named[0] == named[1]


def test_facts_of_sites_stand_in_their_table_and_must_be_of_sites_that_are_there():
    fit = fitted("binomial", sites=(40, 60))
    told = {"site 1": {"rows": 40, "missing": 3, "events": 17}, "site 2": {"rows": 61, "missing": 0, "events": 30}}
    seen = Page(page(fit, title="", facts={"sites": told}))
    assert seen.numbers("Rows by site")["site 2"] == [61, 0, 30, 60, 0.6]
    assert "Rows count by their weights" in seen.said
    with pytest.raises(ConfigError, match="no site of the fit is named 'sit 1'; did you mean 'site 1'"):
        page(fit, title="", facts={"sites": {"sit 1": {"rows": 40}}})


def test_a_digest_is_of_what_was_asked():
    fit = fitted("poisson", sites=(40, 60))
    asked = {"family": "poisson", "formula": "y ~ x1 + x2 + x3", "options": {"b": 1, "a": None}}
    asked["sites"] = {"site 1": 40.0, "site 2": 60.0}
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    assert digest(fit, {"a": None, "b": 1}) == hashlib.sha256(canonical.encode()).hexdigest()
    assert digest(fit, {"a": None, "b": 2}) != digest(fit, {"a": None, "b": 1})
    assert "0123abc" in Page(page(fit, title="", facts={"digest": "0123abc"})).said
    with pytest.raises(ConfigError, match="expected what JSON can hold"):
        digest(fit, {"a": float("nan")})


def test_one_site_and_a_site_that_cannot_be_left_out_are_said():
    fit, _, text = reported("binomial", sites=(80,))
    seen = Page(text).said
    assert "site 1 cannot be left out: site 1 is the only site" in seen and "ordinary regression" in seen
    model, rows = inputs("binomial", sites=(60, 60))
    rows["site 1"].x[:, 3] = 0  # so that the other one alone knows x3
    fit = fit_here(model, rows)
    text = page(fit, title="", facts={})
    assert "site 2 cannot be left out" in Page(text).said
    assert "its rows say nothing of this coefficient" in text


def test_a_run_that_has_not_converged_says_so_at_the_top():
    fit = fitted("binomial")
    lost = replace(fit, optimum=fit.optimum._replace(converged=False))
    seen = Page(page(lost, title="", facts={}))
    assert ("p", {"class": "warning"}) in [(each, attributes) for each, attributes, _ in seen.elements]
    assert "would give" not in seen.said


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("x2", "one unit more of x2 goes with the odds of the outcome multiplied by"),
        ("sex[T.m]", "level m of sex, compared with the reference level, goes with"),
        ("age:sex[T.m]", "an interaction"),
        ("bs(age, df=4)[1]", "it is not read alone"),
    ],
)
def test_a_column_is_read_as_what_it_is(column, says):
    fit = fitted("binomial", names=["Intercept", "age", column])
    seen = Page(page(fit, title="", facts={})).said
    assert f"{column}: " in seen and says in seen
    assert ("where the columns that it interacts with are 0" in seen) == (":" in column)


def test_a_sentence_says_whether_the_interval_leaves_out_no_association():
    fit = fitted("binomial", sites=(400, 400))
    ends = fit.conf_int().to_numpy()[1:]
    seen = Page(page(fit, title="", facts={})).said
    found = re.findall(r"The interval (\w+) 1, which is no association", seen)
    assert found == ["includes" if low <= 0 <= high else "excludes" for low, high in ends]
    assert set(found) == {"includes", "excludes"}


@pytest.mark.parametrize(
    ("logarithm", "written"),
    [(0.0, "1.0000"), (8.183e-7, "1.000000818"), (-0.004, "0.99601"), (1.0, "2.7183"), (-9e5, "almost 0")],
)
def test_a_ratio_has_the_digits_that_tell_it_from_one(logarithm, written):
    assert words.ratio(logarithm) == written


# Held-out rows --------------------------------------------------------------------------------------------------------


def drawn(rows, seed, weights=False):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.8, 1.2, rows)
    return (rng.random(rows) < p).astype(float), p, rng.integers(1, 4, rows) * 1.0 if weights else np.ones(rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_bins_of_sites_give_the_curves_of_all_rows(weighted):
    parts = [drawn(rows, seed, weighted) for seed, rows in enumerate((40, 300, 7))]
    y, p, w = (np.concatenate(each) for each in zip(*parts, strict=True))
    fine = assessment.pooled([assessment.bins(*part, assessment.edges()) for part in parts])
    curve = assessment.roc(fine)
    exact = roc_auc_score(y, p, sample_weight=w)
    assert abs(curve.auc - exact) <= curve.bound < 0.01
    observed, predicted = calibration_curve(np.repeat(y, w.astype(int)), np.repeat(p, w.astype(int)), n_bins=10)
    found = assessment.calibration(fine)
    assert np.allclose(found.observed, observed, rtol=1e-12) and np.allclose(found.predicted, predicted, rtol=1e-12)
    coarse = assessment.pooled([assessment.bins(*part, assessment.edges(10)) for part in parts])
    assert np.array_equal(coarse.weight, found.rows) and np.allclose(coarse.events / coarse.weight, found.observed)


def test_a_probability_on_an_edge_belongs_below_it():
    """As in scikit-learn; a share of several trials counts as often as there were trials."""
    y, p = np.array([0.0, 1, 1, 0, 1]), np.array([0.0, 0.25, 0.5, 0.75, 1])
    observed, predicted = calibration_curve(y, p, n_bins=4)
    found = assessment.calibration(assessment.bins(y, p, np.ones(5), assessment.edges(8)), 4)
    assert np.array_equal(found.observed, observed) and np.array_equal(found.predicted, predicted)
    shares = assessment.bins(np.array([0.25, 1]), np.array([0.3, 0.6]), np.array([4.0, 2]), assessment.edges(4))
    assert shares.weight.tolist() == [0, 4, 2, 0] and shares.events.tolist() == [0, 1, 2, 0]


def test_the_bound_of_the_area_is_reached():
    """All rows in one bin: nothing is known of their order, and either is possible."""
    y, p = np.array([0.0, 0, 1, 1]), np.array([0.501, 0.502, 0.503, 0.504])
    curve = assessment.roc(assessment.bins(y, p, np.ones(4), assessment.edges()))
    assert curve.auc == 0.5 and curve.bound == 0.5 and roc_auc_score(y, p) == 1.0
    assert assessment.roc(assessment.bins(np.ones(4), p, np.ones(4), assessment.edges())) is None


def test_wilson_s_interval_is_statsmodels():
    events, n = np.array([0, 1, 5, 20, 20]), np.array([3, 7, 11, 40, 20])
    expected = proportion_confint(events, n, method="wilson")
    assert np.allclose(assessment.wilson(events / n, n), expected, atol=1e-12)


def test_bins_with_other_edges_do_not_add_up():
    part = drawn(20, 0)
    with pytest.raises(DataError, match="different edges"):
        assessment.pooled([assessment.bins(*part, assessment.edges(10)), assessment.bins(*part, assessment.edges(20))])
    with pytest.raises(ConfigError, match="expected a number that divides them"):
        assessment.calibration(assessment.bins(*part, assessment.edges(25)), 10)


def held_by_hand(name, **options):
    """The split that is promised, made again, and a fit to the rest: held-out rows of all sites with predictors."""
    model, rows = inputs(name, **options)
    held, rest = [], {}
    for place, (site, part) in enumerate(rows.items()):
        order = np.random.default_rng([0, place]).permutation(len(part.y))
        cut = round(0.2 * len(part.y))
        mine, others = np.sort(order[:cut]), np.sort(order[cut:])
        held.append((part.x[mine], part.y[mine]))
        rest[site] = site_rows(part.x[others].copy(), part.y[others].copy(), part.names)
    x, y = (np.concatenate(each) for each in zip(*held, strict=True))
    return fit_here(model, rest), x, y


def test_a_hold_out_assesses_a_fit_to_the_other_rows():
    fit, x, y = held_by_hand("binomial")
    p = 1 / (1 + np.exp(-x @ fit.params.to_numpy()))
    given = inputs("binomial")
    before = {site: part.x.copy() for site, part in given[1].items()}
    result = hold_out(*given)
    assert all(np.array_equal(part.x, before[site]) for site, part in given[1].items())
    assert isinstance(result, Assessment) and sum(result.held_out.values()) == len(y) == 60
    assert result.mean_square == pytest.approx(brier_score_loss(y, p), rel=1e-12)
    assert result.mean_loss == pytest.approx(log_loss(y, p), rel=1e-12)
    curve = assessment.roc(result.bins)
    assert abs(curve.auc - roc_auc_score(y, p)) <= curve.bound


@pytest.mark.parametrize("name", ["gaussian", "gamma", "negative_binomial"])
def test_residuals_are_those_of_the_held_out_rows(name):
    fit, x, y = held_by_hand(name)
    f = x @ fit.params.to_numpy()[: x.shape[1]]
    mean = f if name == "gaussian" else np.exp(f)
    alpha = fit.params.get("alpha", 0.0)
    variance = {"gaussian": fit.scale, "gamma": fit.scale * mean**2, "negative_binomial": mean + alpha * mean**2}[name]
    result = hold_out(*inputs(name))
    assert result.mean_square == pytest.approx(np.mean((y - mean) ** 2), rel=1e-10)
    assert result.spread == pytest.approx(np.var(y), rel=1e-10)
    assert result.residuals.residual.sum() == pytest.approx(((y - mean) / np.sqrt(variance)).sum(), rel=1e-8)
    assert result.residuals.square.sum() == pytest.approx(((y - mean) ** 2 / variance).sum(), rel=1e-8)
    there = result.residuals.weight > 0
    assert result.residuals.weight.sum() == len(y) and there.sum() >= 8
    assert np.all(np.diff(result.residuals.fitted[there] / result.residuals.weight[there]) > 0)


def test_levels_are_assessed_by_their_probabilities():
    fit, x, y = held_by_hand("multinomial")
    f = np.concatenate([np.zeros((1, len(y))), fit.params.to_numpy().reshape(2, -1) @ x.T])
    p = (np.exp(f) / np.exp(f).sum(0)).T
    result = hold_out(*inputs("multinomial"))
    assert result.mean_loss == pytest.approx(log_loss(y, p), rel=1e-10)
    assert result.total.right == (p.argmax(1) == y).sum()
    assert result.mean_square == pytest.approx(((p - np.eye(3)[y.astype(int)]) ** 2).sum(1).mean(), rel=1e-10)


def test_a_hold_out_that_cannot_be_fitted_says_why():
    model, rows = inputs("binomial", sites=(60, 60))
    for part in rows.values():
        part.y[:] = part.x[:, 1] > 0
    result = hold_out(model, rows)
    assert isinstance(result, Unassessed) and "separation" in result.reason
    text = Page(page(fitted("binomial"), title="", facts={}, assessment=result)).said
    assert "No rows could be held out: the rest of the rows cannot be fitted" in text
    few = hold_out(*inputs("gaussian", sites=(2, 2)))
    assert few == Unassessed("every site has too few rows to hold one out")
    with pytest.raises(ConfigError, match=r"share is 1\.5; expected a number between 0 and 1"):
        hold_out(*inputs("gaussian"), share=1.5)


# What left ------------------------------------------------------------------------------------------------------------


def size_of(message):
    """The numbers in a message."""
    return sum(size_of(part) if isinstance(part, tuple) else np.size(part) for part in message)


@pytest.mark.parametrize("name", ["binomial", "negative_binomial", "multinomial"])
def test_a_site_s_rounds_are_counted_as_they_are(name, monkeypatch):
    """Of all that `answer` gets and gives, at every site."""
    down, up = [], []
    real = rounds.answer

    def counting(objective, g, t):
        said = real(objective, g, t)
        down.append(size_of(g) - 1)  # the last is no number, but whether to search
        up.append(size_of(said))
        return said

    monkeypatch.setattr(rounds, "answer", counting)
    fit = fitted(name, sites=(60, 80))
    (parcel,) = [each for each in traffic.of_fit(fit) if each.what == "rounds of the fit"]
    assert (parcel.down, parcel.up) == (8 * sum(down) / 2, 8 * sum(up) / 2)
    P = len(fit.index)
    assert parcel.each == traffic.Message(P + P * P, 1 + P + P + P * P) and parcel.times == fit.rounds
    down.clear(), up.clear()
    taken = {site: fit.without(site).rounds for site in fit.regression.rows}
    parts = [traffic.of_contributions(fit, site, taken)[1] for site in taken]
    assert (sum(each.down for each in parts), sum(each.up for each in parts)) == (8 * sum(down), 8 * sum(up))


def test_the_page_adds_up_what_left():
    _, result, text = reported("gaussian", sites=(60, 80))
    seen = Page(text)
    messages = seen.numbers("Messages between site 1 and the others")
    for times, down, up, down_bytes, up_bytes in messages.values():
        assert (down_bytes, up_bytes) == (8 * times * down, 8 * times * up)
    total = np.array(list(messages.values()))[:, 3:].sum(0)
    assert seen.numbers("All of it")["site 1"] == [*total, 60]
    assert messages["moments of the outcome; its unit"][:3] == [1, 1, 3]
    assert messages["sums over the held-out rows"][2] == 4 + 3 + 3 + 40
    assert f"fewer than {assessment.SMALL} rows" in seen.said and result.small > 0


# Pictures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3e-7, 2e-7), (99, 101), (-1e9, 1e9), (0.3, 0.31)])
def test_ticks_are_round_few_and_inside(low, high):
    ticks = nice(low, high)
    assert 2 <= len(ticks) <= 7 and min(ticks) >= low - 1e-6 * (high - low) and max(ticks) <= high + 1e-6 * (high - low)
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0]) and f"{steps[0]:e}"[0] in "125"
    assert len({tick.text for tick in linear_ticks(low, high)}) == len(ticks)


@pytest.mark.parametrize(("low", "high"), [(-0.01, 0.01), (-1, 1), (0.1, 3), (-5, 5), (-20, 25)])
def test_ticks_of_ratios_stand_where_their_logarithms_are(low, high):
    ticks = ratio_ticks(low, high)
    assert 2 <= len(ticks) <= 7 and all(low - 1e-9 <= tick.at <= high + 1e-9 for tick in ticks)
    assert np.allclose(
        [float(tick.text.replace("−", "-")) for tick in ticks], np.exp([tick.at for tick in ticks]), rtol=1e-5
    )


def test_ticks_of_powers_and_short_names():
    assert [tick.text for tick in power_ticks(-12.5, 3.2)] == ["1e−12", "1e−9", "1e−6", "1e−3", "1", "1e3"]
    assert short("a name of many letters", 9) == "a na…ters" and short("short", 9) == "short"


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(BROWSER is None, reason="no chromium on the path")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_and_prints_it(scheme, tmp_path):
    fit, result, _ = reported("binomial", names=["Intercept", "a_rather_long_name_of_a_column" * 3, "x2"])
    path = write_report(fit, tmp_path / "report.html", facts=FACTS, assessment=result)
    scheme_of = {"dark": 0, "light": 1}
    common = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars"]
    common += [f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme_of[scheme]}"]
    for what in (f"--screenshot={tmp_path / 'page.png'}", f"--print-to-pdf={tmp_path / 'page.pdf'}"):
        command = [*common, "--window-size=1100,1600", what, path.as_uri()]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0 and "CONSOLE" not in ran.stderr, ran.stderr
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    from matplotlib.image import imread

    shown = imread(tmp_path / "page.png")[..., :3]
    assert shown.shape == (1600, 1100, 3)
    paper = shown[-1, 0].mean()
    assert paper < 0.2 if scheme == "dark" else paper > 0.9
    assert np.abs(shown - shown[-1, 0]).max() > 0.5
