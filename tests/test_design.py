"""Designs over sites: the matrices that formulaic makes of the pooled rows."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

from cohorts import KINDS, cohort, hospitals
from fedlap.errors import ConfigError
from fedlap.regression.design import Design, Roles, agree, describe, designs, divide, variables

COHORT = cohort()
SITES = hospitals(COHORT)  # in the order of the pooled rows

EXACT = [
    "outcome ~ age",
    "outcome ~ 1",
    "outcome ~ age + C(sex) + smoker",
    "outcome ~ 0 + age + C(sex)",
    "outcome ~ age - 1",
    "outcome ~ drug",
    "outcome ~ C(drug) * age",
    "outcome ~ drug:sex + C(smoker):age",
    "outcome ~ (age + sex + smoker)**2",
    "outcome ~ C(stage) + stage",
    "outcome ~ C(drug, contr.treatment(base='b')) + C(stage, contr.treatment(base=3))",
    "outcome ~ C(sex, Treatment('male')) + C(drug, contr.sum) + C(stage, contr.helmert)",
    "outcome ~ C(drug, levels=['c', 'b', 'a']) + C(stage, contr.poly)",
    "outcome ~ I(age**2) + np.log(age) + log(years) + np.sqrt(`blood pressure`)",
    "outcome ~ I((age > 40) & (sex == 'male')) + {age / years} + np.where(smoker, age, 0)",
    "outcome ~ bs(age, knots=[40, 60]) + bs(np.log(years), knots=[0.5], degree=2, include_intercept=True)",
    "outcome ~ bs(age, knots=[40, 60], lower_bound=0, upper_bound=200):sex + bs(years)",
    "outcome ~ cr(age, knots=[40, 60]) + cc(years, knots=[1, 2])",
    "outcome ~ poly(age, 3, raw=True)",
    "np.log(age) ~ smoker",
    "I(age > 50) ~ smoker",
]


def pooled(rows):
    return np.concatenate([each.x for each in rows.values()])


@pytest.mark.parametrize("formula", EXACT)
def test_the_matrices_of_sites_are_the_pooled_matrix_to_the_bit(formula):
    design, rows = designs(formula, SITES)
    wanted = model_matrix(formula, COHORT)
    assert design.names == tuple(wanted.rhs.columns)
    np.testing.assert_array_equal(pooled(rows), wanted.rhs.to_numpy(float))
    y = np.concatenate([each.y for each in rows.values()])
    np.testing.assert_array_equal(y, wanted.lhs.to_numpy(float)[:, 0])
    for name, each in rows.items():
        assert each.x.dtype == each.y.dtype == np.float64 and each.x.flags.c_contiguous
        assert each.left_out == 0 and len(each.kept) == len(SITES[name]) and each.names == design.names
        np.testing.assert_array_equal(each.sums, each.x.sum(0))


@pytest.mark.parametrize(
    "formula",
    [
        "outcome ~ center(age) + scale(`blood pressure`) + standardize(years)",
        "outcome ~ scale(age, center=False) + scale(years, scale=False) + scale(visits, 3, ddof=0)",
        "outcome ~ scale(age, scale=10) + standardize(years, rescale=False) + standardize(age, False)",
        "outcome ~ I(center(age)**2) + center(age):sex",
    ],
)
def test_what_is_centred_is_centred_at_the_mean_of_all_rows(formula):
    design, rows = designs(formula, SITES)
    wanted = model_matrix(formula, COHORT).rhs
    assert design.names == tuple(wanted.columns)
    np.testing.assert_allclose(pooled(rows), wanted.to_numpy(float), rtol=1e-11, atol=1e-11)


def spans(first, second):
    """How far the columns of the first are from combinations of the second's, relative to their size."""
    residuals = first - second @ np.linalg.lstsq(second, first, rcond=None)[0]
    return np.linalg.norm(residuals) / np.linalg.norm(first)


@pytest.mark.parametrize("function", ["bs", "cr"])
def test_a_spline_without_knots_has_them_at_quantiles_of_all_rows(function):
    """The same space as the pooled spline with the agreed knots, and these are near the pooled quantiles."""
    design, rows = designs(f"outcome ~ {function}(age, df=5)", SITES)
    (state,) = design._spec.transform_state.values()
    inner = sorted(set(state["knots"]) - {COHORT["age"].min(), COHORT["age"].max()})
    assert {min(state["knots"]), max(state["knots"])} == {COHORT["age"].min(), COHORT["age"].max()}
    wanted = model_matrix(f"outcome ~ {function}(age, knots={inner})", COHORT).rhs.to_numpy(float)
    assert max(spans(pooled(rows), wanted), spans(wanted, pooled(rows))) < 1e-12
    ranks = [(COHORT["age"] <= knot).mean() for knot in inner]
    assert np.abs(np.array(ranks) - np.linspace(0, 1, len(inner) + 2)[1:-1]).max() < 0.02


def test_the_knots_of_one_site_are_its_quantiles():
    """The median of a spline with one knot is among the quantiles that a site tells."""
    _, rows = designs("outcome ~ bs(age, df=4)", {"all": COHORT})
    np.testing.assert_array_equal(rows["all"].x, model_matrix("outcome ~ bs(age, df=4)", COHORT).rhs.to_numpy(float))


def test_a_large_site_has_more_to_say_about_knots():
    rng = np.random.default_rng(1)
    ages = {"large": rng.uniform(0, 10, 900), "small": rng.uniform(50, 60, 100)}
    design, _ = designs("age ~ bs(age, df=4)", {name: {"age": values} for name, values in ages.items()})
    (state,) = design._spec.transform_state.values()
    (median,) = set(state["knots"]) - {min(state["knots"]), max(state["knots"])}
    assert abs(median - np.median(np.concatenate(list(ages.values())))) < 0.1


def test_orthogonal_polynomials_span_what_the_pooled_ones_span():
    _, rows = designs("outcome ~ poly(age, 3)", SITES)
    wanted = model_matrix("outcome ~ poly(age, 3)", COHORT).rhs.to_numpy(float)
    assert max(spans(pooled(rows), wanted), spans(wanted, pooled(rows))) < 1e-12


def test_a_level_of_one_site_is_a_column_of_all():
    design, rows = designs("outcome ~ drug + C(stage)", SITES)
    assert design.names == ("Intercept", "drug[T.b]", "drug[T.c]", *(f"C(stage)[T.{stage}]" for stage in (2, 3, 4)))
    assert rows["east"].sums[[2, 5]].tolist() == [0, 0] and rows["west"].sums[2] > 0 and rows["north"].sums[5] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_all_kinds_give_the_same_arrays(kind):
    gaps = COHORT.copy()
    gaps.loc[[3, 50], "age"] = np.nan
    gaps.loc[[4, 88], "sex"] = None
    gaps["smoker"] = gaps["smoker"].astype(object)
    gaps.loc[60, "smoker"] = None
    formula = "outcome ~ age + C(sex) * smoker + C(stage) + drug"
    wanted = model_matrix(formula, gaps.dropna().astype({"smoker": bool})).rhs
    design, rows = designs(formula, {name: KINDS[kind](part) for name, part in hospitals(gaps).items()})
    np.testing.assert_array_equal(pooled(rows), wanted.to_numpy(float))
    assert design.names == tuple(wanted.columns)
    assert [each.left_out for each in rows.values()] == [2, 2, 1]
    assert set(range(40)) - set(rows["east"].kept.tolist()) == {3, 4}
    divided, parts = designs(formula, KINDS[kind](gaps), site="hospital")
    assert divided == design
    np.testing.assert_array_equal(pooled(parts), pooled(rows))


@pytest.mark.parametrize("kind", ["category", "string", "Int64", "float32", "bool[pyarrow]"])
def test_types_of_columns_make_no_difference(kind):
    column = {"category": "drug", "string": "drug", "Int64": "stage", "float32": "stage", "bool[pyarrow]": "smoker"}[
        kind
    ]
    formula = f"outcome ~ C({column})"
    design, rows = designs(formula, hospitals(COHORT.astype({column: kind})))
    wanted, others = designs(formula, SITES)
    assert design == wanted
    np.testing.assert_array_equal(pooled(rows), pooled(others))


def test_steps_carry_plain_data_and_give_what_one_process_gives():
    formula, roles = "ill ~ bs(age, df=4) + C(stage) + scale(years)", Roles(outcome="binary", weights="visits")
    sites = hospitals(COHORT.assign(visits=COHORT["visits"] + 1))
    needed = json.loads(json.dumps(variables(formula, roles)))
    told = {name: json.loads(json.dumps(describe(frame, needed))) for name, frame in sites.items()}
    design = agree(formula, told, roles)
    wanted, rows = designs(formula, sites, weights="visits", outcome="binary")
    assert design == wanted
    for name, frame in sites.items():
        np.testing.assert_array_equal(design.matrix(frame).x, rows[name].x)


def test_a_site_tells_no_more_than_is_needed():
    told = describe(SITES["east"], variables("outcome ~ age + C(stage) + sex + bs(years, df=4) + scale(visits)"))
    assert told["rows"] == 40
    number = {"kind", "missing", "count", "min", "max", "sum"}
    assert {name: set(each) - number for name, each in told["variables"].items()} == {
        "outcome": set(),
        "age": set(),
        "stage": {"levels", "counts"},
        "sex": {"levels", "counts", "first"},
        "years": {"quantiles"},
        "visits": {"squares"},
    }
    assert told["variables"]["sex"]["levels"] == ["female", "male"] and sum(told["variables"]["sex"]["counts"]) == 40
    assert len(told["variables"]["years"]["quantiles"]) == 101


def test_a_saved_design_predicts():
    formula = "outcome ~ bs(age, df=4) + C(drug, contr.treatment(base='c')) + scale(years):smoker + C(stage)"
    design, rows = designs(formula, SITES, exposure="years")
    saved = Design.from_dict(json.loads(json.dumps(design.as_dict())))
    assert saved == design and saved.as_dict() == design.as_dict()
    new = SITES["west"].drop(columns=["outcome", "sex"])
    found = saved.matrix(new, outcome=False)
    np.testing.assert_array_equal(found.x, rows["west"].x)
    np.testing.assert_array_equal(found.offset, np.log(new["years"]))
    assert found.y is None and found.names == design.names
    np.testing.assert_array_equal(saved.matrix(new[:1], outcome=False).x, rows["west"].x[:1])


def test_weights_offset_exposure_and_trials():
    extra = COHORT.assign(n=COHORT["visits"] + 3, shift=COHORT["age"] / 10)
    extra.loc[0, "n"] = np.nan
    keep = {"weights": "stage", "offset": "shift", "exposure": "years", "trials": "n"}
    _, rows = designs("visits ~ age", hospitals(extra), **keep, outcome="binary")
    east = hospitals(extra)["east"][1:]
    assert rows["east"].left_out == 1 and rows["east"].kept[0] == 1
    np.testing.assert_array_equal(rows["east"].weights, east["stage"])
    np.testing.assert_array_equal(rows["east"].trials, east["n"])
    np.testing.assert_array_equal(rows["east"].y, east["visits"])
    np.testing.assert_array_equal(rows["east"].offset, np.log(east["years"]) + east["shift"])
    assert designs("visits ~ age", SITES)[1]["east"].weights is None


@pytest.mark.parametrize(
    ("column", "success", "values"),
    [
        ("ill", None, None),
        ("smoker", None, None),
        ("smoker", False, False),
        ("sex", "male", "male"),
        ("stage", np.int64(3), 3),
    ],
)
def test_binary_outcomes_are_zeros_and_ones(column, success, values):
    design, rows = designs(f"{column} ~ age", SITES, success=success, outcome="binary")
    assert Design.from_dict(json.loads(json.dumps(design.as_dict()))) == design
    wanted = COHORT[column] if values is None else COHORT[column] == values
    np.testing.assert_array_equal(np.concatenate([each.y for each in rows.values()]), wanted.astype(float))


@pytest.mark.parametrize("column", ["drug", "stage"])
def test_classes_are_those_of_all_sites(column):
    design, rows = designs(f"{column} ~ age", SITES, outcome="classes")
    levels = sorted(set(COHORT[column]))
    assert design.classes == tuple(levels)
    codes = np.concatenate([each.y for each in rows.values()])
    assert codes.tolist() == [levels.index(value) for value in COHORT[column]]


def test_a_duration_has_an_event_and_no_intercept():
    design, rows = designs("age + C(sex)", SITES, duration="years", event="smoker")
    assert design.names == ("age", "C(sex)[T.male]") and rows["east"].y is None
    np.testing.assert_array_equal(rows["east"].duration, SITES["east"]["years"])
    np.testing.assert_array_equal(rows["east"].event, SITES["east"]["smoker"])
    assert designs("~ age + C(sex)", SITES, duration="years", event="ill")[0].names == design.names


def test_one_frame_is_divided_by_a_column():
    parts = divide(COHORT.assign(number=np.repeat([3.0, 1.0], 45)), "number")
    assert list(parts) == ["1", "3"]
    np.testing.assert_array_equal(parts["1"]["age"], COHORT["age"][45:])


def test_a_column_may_be_named_as_a_function_is():
    sites = hospitals(COHORT.rename(columns={"drug": "center", "age": "log"}))
    design, _ = designs("outcome ~ C(center) + log", sites)
    assert design.names == ("Intercept", "C(center)[T.b]", "C(center)[T.c]", "log")


def test_libraries_of_formulas_come_when_they_are_used(monkeypatch):
    code = (
        "import sys, fedlap.regression.design; print([m for m in ('formulaic', 'pandas', 'jax') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ConfigError, match=r'not installed here: pip install "fedlap\[stats\]"'):
        designs("outcome ~ age", SITES)


def test_unused_columns_are_not_looked_at():
    sites = hospitals(COHORT.assign(odd=[object()] * 90, day=pd.Timestamp("2020-01-01")))
    sites["east"]["more"] = "x"
    _, rows = designs("outcome ~ age", sites)
    np.testing.assert_array_equal(pooled(rows), pooled(designs("outcome ~ age", SITES)[1]))
