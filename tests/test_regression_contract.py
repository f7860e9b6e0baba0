"""The file of a regression: what it may say, what it is told if it says something else, and the design it gives."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedlap
import regression_studies as regressions
from fedlap.errors import ConfigError
from fedlap.study.agreement.reading import read_study
from fedlap.study.agreement.regression import resolve_regression
from fedlap.study.agreement.template import regression_text
from fedlap.study.table.columns import Column

USED = ["ill", "age", "sex"]
LOGISTIC = {"formula": "ill ~ age + sex", "family": "binomial"}


def resolve(regression=LOGISTIC, used=USED, **sections):
    return resolve_regression(regressions.table(used, regression, **sections), "study.toml")


def changed(**changes):
    return {key: value for key, value in {**LOGISTIC, **changes}.items() if value is not None}


COX = {"formula": "age + sex", "duration": "time", "event": "died"}
WRONG = {
    "a quorum": (lambda: resolve(network={"quorum": 2}), "quorum is 2; a regression needs all 3 members"),
    "rounds": (lambda: resolve(study={"rounds": 3}), "study.rounds means nothing in a regression"),
    "another section": (
        lambda: resolve_regression({**regressions.table(USED, LOGISTIC), "target": {}}, "study.toml"),
        "unknown section 'target'",
    ),
    "no formula": (lambda: resolve({"family": "binomial"}), "regression.formula is missing"),
    "a misspelt key": (
        lambda: resolve(changed(famly="x")),
        "unknown key in .regression. 'famly'; did you mean 'family'",
    ),
    "a misspelt family": (lambda: resolve(changed(family="poison")), "did you mean 'poisson'"),
    "no family": (lambda: resolve(changed(family=None)), "family is missing; expected a family, or duration and event"),
    "two kinds": (lambda: resolve({**COX, "family": "binomial"}), "a family beside duration and event"),
    "half a duration": (
        lambda: resolve({"formula": "age", "duration": "time"}, ["age", "time"]),
        "event is not given; expected duration and event",
    ),
    "ties of a family": (lambda: resolve(changed(ties="efron")), "ties goes with duration and event"),
    "misspelt ties": (
        lambda: resolve({**COX, "ties": "efrom"}, ["age", "sex", "time", "died"]),
        "did you mean 'efron'",
    ),
    "trials of a duration": (lambda: resolve({**COX, "trials": "age"}), "trials means nothing beside duration"),
    "an outcome beside a duration": (
        lambda: resolve({**COX, "formula": "age ~ sex"}, ["age", "sex", "time", "died"]),
        "has an outcome beside duration and event",
    ),
    "no outcome": (lambda: resolve(changed(formula="age + sex")), "has no outcome"),
    "a column that is not there": (
        lambda: resolve(changed(formula="ill ~ agee + sex")),
        "uses 'agee', which is not in .columns.; did you mean 'age'",
    ),
    "a column that nobody uses": (
        lambda: resolve(used=[*USED, "smoker"]),
        "columns.smoker is not used by the regression; leave it out, or list it in study.ignored_columns",
    ),
    "a column used and ignored": (
        lambda: resolve(study={"ignored_columns": ["age"]}),
        "'age' is in study.ignored_columns and also used",
    ),
    "means for missing values": (
        lambda: resolve(columns={"age": {"kind": "number", "missing": "mean"}}),
        'age.missing is "mean"; expected "refuse" or "drop"',
    ),
    "levels of a number": (
        lambda: resolve(changed(formula="ill ~ C(age) + sex")),
        'has C.age.; expected columns.age.kind = "category"',
    ),
    "arithmetic with a category": (
        lambda: resolve(changed(formula="ill ~ age + log(sex)")),
        "computes with 'sex'; expected columns.sex.kind = \"number\"",
    ),
    "a mean of all rows": (
        lambda: resolve(changed(formula="ill ~ scale(age) + sex")),
        "takes the mean of 'age', which no study file knows",
    ),
    "a spline without a range": (
        lambda: resolve(changed(formula="ill ~ bs(smoker, df=4)"), ["ill", "smoker"]),
        "a spline or a polynomial of 'smoker'; expected columns.smoker to have a minimum and a maximum",
    ),
    "classes that are not listed": (
        lambda: resolve(changed(family="multinomial")),
        'the outcome .ill. is one of a few values; expected columns.ill.kind = "category"',
    ),
    "a success that is no category": (
        lambda: resolve(changed(formula="sex ~ age", success="men"), ["age", "sex"]),
        "success is 'men'; expected a value of 'sex'",
    ),
    "no success": (lambda: resolve(changed(formula="sex ~ age"), ["age", "sex"]), "Say which one counts as 1"),
    "text as a number": (
        lambda: resolve(changed(formula="sex ~ age", family="gaussian"), ["age", "sex"]),
        "computes with 'sex'; expected columns.sex.kind = \"number\"",
    ),
    "a prior without spread": (lambda: resolve(changed(prior_sd=0)), "prior_sd is 0; expected a number above 0"),
    "parameters without rows": (
        lambda: resolve(changed(parameters_per_row=1.5)),
        "parameters_per_row is 1.5; expected a number between 0 and 1",
    ),
    "robust in words": (lambda: resolve(changed(robust="rows")), "robust is 'rows'; expected true or false"),
    "robust over trials": (
        lambda: resolve(changed(robust=True, trials="treated"), [*USED, "treated"]),
        "robust takes rows one by one, and trials counts them together",
    ),
    "a role that is no column": (lambda: resolve(changed(weights=3)), "weights is 3; expected the name of a column"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_named_with_what_was_expected(case):
    make, words = WRONG[case]
    with pytest.raises(ConfigError, match=words) as error:
        make()
    assert str(error.value).startswith("study.toml: ")


def test_the_text_of_a_study_is_read_back(tmp_path):
    columns = [Column.parse(name, regressions.COLUMNS[name]) for name in ("age", "sex", "time", "died")]
    settings = {**COX, "ties": "breslow", "prior_sd": 2.5, "weights": None, "robust": True}
    text = regression_text('a "wards" study', ["b", "a"], columns, settings, address="fl.example.org:9443")
    (tmp_path / "study.toml").write_text(text)
    study = read_study(tmp_path)
    assert study.columns == tuple(columns) and study.robust and study.address == "fl.example.org:9443"
    assert [member.name for member in study.members] == ["a", "b"] and study.quorum == 2
    assert study.model.ties == "breslow" and study.model.prior == fedlap.normal(sd=2.5)
    assert resolve_regression(study.shared(), "elsewhere").digest == study.digest


def test_the_study_of_the_guide_is_one(tmp_path):
    guide = (Path(__file__).parent.parent / "docs" / "real-federations.md").read_text()
    (text,) = [block for block in re.findall(r"^```toml\n(.*?)^```", guide, re.S | re.M) if "[regression]" in block]
    study = resolve_regression(tomllib.loads(text), "study.toml")
    assert study.design.names == ("Intercept", "age", "smoker[T.former]", "smoker[T.current]")


def test_the_digest_is_of_what_was_said():
    digest = resolve().digest
    assert resolve(changed(parameters_per_row=0.33)).digest == digest
    assert resolve(network={"address": "elsewhere:9443"}).digest == digest
    different = [
        resolve(changed(parameters_per_row=0.2)),
        resolve(changed(prior_sd=1.0)),
        resolve(study={"minimum_rows": 20}),
        resolve(columns={"age": {"kind": "number", "minimum": 18, "maximum": 120}}),
    ]
    assert len({digest, *(study.digest for study in different)}) == 5


def test_the_first_category_of_the_file_is_the_reference(tmp_path):
    """Of a column and of the classes of an outcome; the fit is that of the sorted ones, in other words."""
    frames = regressions.hospitals()
    columns = {
        "sex": {"kind": "category", "categories": ["male", "female"]},
        "ward": {"kind": "category", "categories": ["surgery", "heart", "lung"]},
    }
    settings = {"formula": "ward ~ age + sex", "family": "multinomial"}
    study, files = regressions.make(tmp_path, ["ward", "age", "sex"], settings, frames, columns=columns)
    fit = regressions.run(study, files, tmp_path)[0].fit
    assert study.design.names == ("Intercept", "age", "sex[T.female]")
    assert list(dict.fromkeys(level for level, _ in fit.params.index)) == ["heart", "lung"]
    sorted_ = fedlap.glm("ward ~ age + sex", frames, family="multinomial")
    np.testing.assert_allclose(fit.llf, sorted_.llf, rtol=1e-10)
    np.testing.assert_allclose(fit.params["heart", "age"], -sorted_.params["surgery", "age"], rtol=1e-7)
    with pytest.raises(KeyError):
        fit.params["surgery", "age"]


def test_splines_lie_on_the_range_of_the_file(tmp_path):
    """With its ends and knots written into the formula, the same columns follow from any rows."""
    frames = regressions.hospitals()
    settings = {"formula": "ill ~ bs(age, df=4) + sex", "family": "binomial"}
    study, files = regressions.make(tmp_path, USED, settings, frames)
    fit = regressions.run(study, files, tmp_path)[0].fit
    written = "ill ~ bs(age, knots=[60.0], lower_bound=0.0, upper_bound=120.0) + sex"
    pooled = fedlap.glm(written, {"all": pd.concat(frames.values(), ignore_index=True)})
    np.testing.assert_allclose(fit.llf, pooled.llf, rtol=1e-10)
    np.testing.assert_allclose(fit.params, pooled.params, rtol=1e-6)


def test_a_row_with_an_empty_cell_is_dropped_where_the_file_says_so(tmp_path):
    frames = regressions.hospitals()
    frames["south"].loc[[3, 8], "age"] = np.nan
    columns = {"age": {**regressions.COLUMNS["age"], "missing": "drop"}}
    study, files = regressions.make(tmp_path, USED, LOGISTIC, frames, columns=columns)
    fit = regressions.run(study, files, tmp_path)[0].fit
    here = fedlap.glm(LOGISTIC["formula"], {name: frames[name] for name in sorted(frames)})
    np.testing.assert_array_equal(fit.params, here.params)
    assert fit.regression.rows["south"] == 68
