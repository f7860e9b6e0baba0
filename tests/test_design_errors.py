"""What designs over sites refuse, and how they say so."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

from cohorts import as_dictionary, cohort, hospitals
from fedlap.errors import ConfigError, DataError
from fedlap.regression.design import Design, designs, divide

COHORT = cohort()


def sites(**columns):
    """The hospitals, with further columns."""
    return hospitals(COHORT.assign(**columns))


def changed(site, column, row, value):
    """The hospitals, where one value is another."""
    frames = hospitals(COHORT)
    frames[site][column] = frames[site][column].astype(object)
    frames[site].loc[row, column] = value
    return frames


def refused(kind, message, formula="outcome ~ age", frames=None, **options):
    with pytest.raises(kind) as caught:
        designs(formula, hospitals(COHORT) if frames is None else frames, **options)
    assert message in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("formula", "position", "message"),
    [
        ("outcome ~ age +", 15, "`+`"),
        ("outcome ~ (age + sex", 11, "Could not find matching context marker"),
        ("outcome ~ age sex", 11, "Missing operator between `age` and `sex`"),
        ("outcome ~ C(sex", 11, "Expected: )"),
        ("outcome ~ I(age**)", 18, "it is no valid expression"),
        ("outcome ~ 2 * age", 11, "Numeric literals"),
        ("outcome ~ .", 11, "'.' stands for no columns here; expected their names"),
        ("outcome ~ age | sex", 15, "it has several parts; expected one right side"),
        ("outcome + ill ~ age", 1, "its left side is more than one column; expected one outcome"),
        ("scale(outcome) ~ age", 1, "its left side looks at all rows; expected a column, or a function of single rows"),
        ("C(outcome) ~ age", 1, "its left side looks at all rows; expected a column, or a function of single rows"),
    ],
)
def test_a_formula_that_cannot_be_read_is_pointed_at(formula, position, message):
    with pytest.raises(ConfigError) as caught:
        designs(formula, hospitals(COHORT))
    first, shown, caret = str(caught.value).split("\n")
    assert first.startswith(f"the formula cannot be used, position {position}: ") and message in first
    assert shown == f"  {formula}" and caret == " " * (position + 1) + "^"
    assert "\x1b" not in first


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("np.mean(age)", "'np.mean' is no function that can be agreed on over sites"),
        ("I(age - age.mean())", "'age.mean' is no function that can be agreed on over sites"),
        ("np.add.reduce(age)", "'np.add.reduce' is no function"),
        ("np.matmul(age, age)", "'np.matmul' is no function"),
        ("np.load('x')", "'np.load' is no function"),
        ("lag(age)", "'lag' is no function"),
        ("Log(age)", "'Log' is no function that can be agreed on over sites; did you mean 'log'?"),
        ("Q('age')", "expected the name of the column between backticks"),
        ("{__import__('os').getcwd()}", "is no function"),
        ("I([row for row in age])", "is not known here"),
        ("I(age[0])", "'age[0]' is not known here"),
        ("I(age in sex)", "compares no row by itself"),
        ("I(np.lib)", "'np.lib' is not known here"),
        ("np.log(*age)", "has a starred argument"),
        ("C(age > 60)", "'C(age > 60)' is no category: C(...) takes a column"),
        ("C(sex, contr.treatment.__init__)", "'contr.treatment.__init__' is not known here"),
        ("C(sex, contr.treatment(base=age))", "expected numbers or texts, written out"),
        ("center(np.log(age))", "expected center of a column: make a column of it at every site"),
        ("bs(age + years, df=4)", "expected bs of one column, or a function of it"),
        ("bs(center(age), df=4)", "has a function inside that looks at all rows, too"),
        ("bs(age, knots=np.log(age))", "is no setting; expected numbers or texts, written out"),
        ("C(years) + years(age)", "'years' is no function"),
    ],
)
def test_what_sites_cannot_agree_on_is_refused(term, message):
    refused(ConfigError, message, f"outcome ~ {term}")


def test_a_name_is_a_column_or_a_function():
    frames = sites(center=COHORT["drug"])
    refused(ConfigError, "'center' is a column and a function", "outcome ~ C(center) + center(age)", frames)


@pytest.mark.parametrize("formula", ["", "  ", None, 3])
def test_a_formula_is_a_text(formula):
    refused(ConfigError, "expected a text such as 'outcome ~ age + C(sex)'", formula)


def test_what_a_formula_lacks():
    refused(ConfigError, "has no outcome; expected 'outcome ~ age'", "age")
    refused(ConfigError, "gives no columns; expected at least one", "outcome ~ 0")
    refused(ConfigError, "has an outcome beside duration and event", "ill ~ age", duration="years", event="ill")
    refused(ConfigError, "event is not given; expected duration and event", "age", duration="years")
    refused(ConfigError, "gives no columns", "1", duration="years", event="ill")


def test_what_formulaic_refuses_is_an_error_of_the_formula():
    refused(ConfigError, "the formula cannot be used: ", "outcome ~ C(drug, contr.treatment(base='z'))")
    refused(ConfigError, "the formula cannot be used: ", "outcome ~ bs(age, df=2)")
    refused(ConfigError, "the formula cannot be used: ", "outcome ~ I(20 < age < 30)")


def test_a_level_that_the_formula_leaves_out_is_an_error_where_warnings_are_not_read():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused(ConfigError, "categories outside of the nominated levels", "outcome ~ C(drug, levels=['a', 'b'])")


def test_an_unknown_column():
    refused(DataError, "there is no column 'aeg' at any site; did you mean 'age'?", "outcome ~ aeg")
    frames = hospitals(COHORT)
    frames["east"] = frames["east"].rename(columns={"age": "Age"})
    refused(DataError, "there is no column 'age' at site 'east'; did you mean 'Age'?", frames=frames)
    frames["west"] = frames["west"].drop(columns="age")
    refused(DataError, "there is no column 'age' at sites 'east', 'west'; did you mean 'Age'?", frames=frames)
    refused(DataError, "there is no column 'weigth' at any site", weights="weigth")


@pytest.mark.parametrize("value", ["12,5", "n/a"])
def test_a_text_among_numbers(value):
    message = f"site 'north', row 4: column 'age' is {value!r}; expected a number in every row, or nothing"
    refused(DataError, message, frames=changed("north", "age", 4, value))


def test_lists_are_not_made_text():
    """As NumPy makes them that meets a number beside a text."""
    message = "site 'a', row 1: column 'age' is 'n/a'; expected a number in every row, or nothing"
    frames = {"a": {"outcome": [1, 2, 3], "age": [40.5, "n/a", 30]}}
    refused(DataError, message, frames=frames)
    refused(
        DataError,
        "row 0: column 'age' is [1]; expected a number",
        frames={"a": {**frames["a"], "age": [[1], [2, 3], []]}},
    )
    refused(DataError, "row 1: column 'age' is 'n/a'", frames={**frames["a"], "h": ["x", "x", "y"]}, site="h")
    gaps = {"a": {"outcome": [1, None, 3, 4], "sex": ["male", "female", float("nan"), "female"]}}
    design, rows = designs("outcome ~ sex", gaps)
    assert design.names == ("Intercept", "sex[T.male]") and rows["a"].kept.tolist() == [0, 3]


@pytest.mark.parametrize("value", ["12,5", "n/a"])
def test_a_number_that_is_text_at_one_site(value):
    """The row is named whose text is no number, not the first."""
    frames = hospitals(COHORT)
    frames["north"]["age"] = frames["north"]["age"].astype(str)
    frames["north"].loc[4, "age"] = value
    message = (
        f"site 'north', row 4: column 'age' is {value!r}; expected a number, which it is at site 'east', or nothing"
    )
    refused(DataError, message, frames=frames)
    frames["north"]["age"] = "31"
    refused(DataError, "site 'north', row 0: column 'age' is '31'; expected a number", frames=frames)


def test_kinds_agree():
    frames = hospitals(COHORT)
    frames["west"]["smoker"] = frames["west"]["smoker"].astype(int)
    message = (
        "column 'smoker' is a truth value at site 'east' but a number at site 'west'; expected the same everywhere"
    )
    refused(DataError, message, "outcome ~ smoker", frames)


def test_text_is_not_computed_with():
    refused(DataError, "site 'east', row 0: column 'sex' is ", "outcome ~ np.log(sex)")
    refused(DataError, "expected a number", "outcome ~ age", weights="sex")


@pytest.mark.parametrize("day", [pd.Timestamp("2020-02-01"), pd.Timestamp("2020-02-01").date(), pd.Timedelta("3d")])
def test_a_date_is_no_number(day):
    message = "column 'day' is a date at site 'east'; expected a number, such as the days or years since a day"
    refused(DataError, message, "outcome ~ day", sites(day=[day] * 90))


def test_two_columns_of_one_name():
    frames = hospitals(COHORT)
    frames["west"] = pd.concat([frames["west"], frames["west"][["age"]]], axis=1)
    refused(DataError, "site 'west': two columns are named 'age'; expected unique names", frames=frames)


@pytest.mark.parametrize("written", ["name", "C(name)"])
@pytest.mark.parametrize("rows", [90, 12])
def test_a_name_for_every_row_is_no_category(written, rows):
    frames = hospitals(COHORT.assign(name=[f"p{row}" for row in range(90)]).groupby("hospital").head(rows // 3))
    message = "values of column 'name' are different, as 'p0', "
    refused(DataError, message, f"outcome ~ {written}", frames)
    refused(DataError, "expected a category, not a name for every row", f"outcome ~ {written}", frames)


def test_a_site_does_not_tell_the_names_of_its_rows():
    frame = COHORT.assign(name=[f"p{row}" for row in range(90)])
    refused(DataError, "site 'all': all 90 values of column 'name' are different", "outcome ~ name", {"all": frame})


def test_many_levels_are_written_as_a_category():
    many = sites(place=[f"p{row % 60}" for row in range(90)])
    refused(DataError, "column 'place' is text with 60 levels, as 'p0', 'p1', 'p10', …", "outcome ~ place", many)
    refused(DataError, "write C(place) in the formula", "outcome ~ place", many)
    assert len(designs("outcome ~ C(place)", many)[0].names) == 60
    assert len(designs("outcome ~ place", sites(place=[f"p{row % 50}" for row in range(90)]))[0].names) == 50


def test_knots_and_levels_of_one_column():
    refused(ConfigError, "is in a spline without given knots and in C(...)", "outcome ~ bs(stage, df=4) + C(stage)")


def test_sites_have_rows():
    frames = hospitals(COHORT)
    frames["west"]["drug"] = np.nan
    message = "site 'west' has no rows without a missing value: column 'drug' has no value; expected at least one"
    refused(DataError, message, "outcome ~ drug", frames)
    frames["west"] = hospitals(COHORT)["west"][:0]
    refused(DataError, "site 'west' has no rows without a missing value", frames=frames)
    refused(DataError, "there are no sites; expected at least one", frames={})


def test_an_outcome_that_is_missing_everywhere():
    refused(DataError, "column 'outcome' has no value at any site", frames=sites(outcome=np.nan))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_numbers_are_finite(value):
    frames = changed("north", "age", 7, value)
    refused(DataError, f"site 'north', row 7: column 'age' is {value}; expected a finite number", frames=frames)


def test_what_is_computed_is_finite():
    frames = changed("north", "age", 7, -1.0)
    frames["north"].loc[2, "age"] = None
    message = "site 'north', row 7: np.log(age) is nan; expected a finite number"
    refused(DataError, message, "outcome ~ np.log(age)", frames)
    refused(DataError, "site 'north', row 7: the outcome is nan", "np.log(age) ~ years", frames)


def test_binary_outcomes_say_what_a_success_is():
    refused(ConfigError, "has the values 'female', 'male'; expected 0 and 1", "sex ~ age", outcome="binary")
    refused(ConfigError, "Say which one counts as 1, as success='male' does", "sex ~ age", outcome="binary")
    refused(ConfigError, "has the values 1, 2, 3, 4; expected 0 and 1", "stage ~ age", outcome="binary")
    refused(
        ConfigError,
        "success is 'mal'; expected a value of 'sex': 'female', 'male'; did you mean 'male'?",
        "sex ~ age",
        success="mal",
    )
    refused(ConfigError, "success is '1'; expected a value of 'ill': 0, 1", "ill ~ age", success="1")
    refused(ConfigError, "outcome 'sex' is text: 'female', 'male'; expected numbers", "sex ~ age")
    refused(DataError, "outcome 'outcome' has 90 different values; expected a few classes", outcome="classes")
    refused(ConfigError, "is computed; expected a column for success", "np.log(age) ~ sex", success=1)


@pytest.mark.parametrize(
    ("role", "value", "message"),
    [
        ("weights", 0, "column 'extra', the weights, is 0; expected a number above 0"),
        ("weights", -2, "column 'extra', the weights, is -2; expected a number above 0"),
        ("exposure", 0, "column 'extra', the exposure, is 0; expected a number above 0"),
        ("trials", 0.5, "column 'extra', the trials, is 0.5; expected a whole number, 1 or above"),
        ("trials", 1, "the outcome is 7 of 1 trials; expected a whole number from 0 to them"),
    ],
)
def test_roles_have_their_range(role, value, message):
    extra = np.full(90, 9.0)
    extra[44] = value
    visits = np.where(np.arange(90) == 44, 7, COHORT["visits"])
    refused(
        DataError,
        f"site 'north', row 4: {message}",
        "visits ~ age",
        sites(extra=extra, visits=visits),
        **{role: "extra"},
    )


def test_durations_and_events_have_their_range():
    refused(
        DataError,
        "site 'east', row 2: column 'stage', the event, is 2; expected 0 or 1",
        "age",
        duration="years",
        event="stage",
    )
    frames = changed("west", "years", 3, -1.0)
    message = "site 'west', row 3: column 'years', the duration, is -1; expected a number, 0 or above"
    refused(DataError, message, "age", frames, duration="years", event="ill")


def test_roles_are_names_of_columns():
    refused(ConfigError, "weights is list; expected the name of a column", weights=[1, 2])
    refused(ConfigError, "unknown outcome 'binery'; did you mean 'binary'?", outcome="binery")
    refused(ConfigError, "success and trials are given", "ill ~ age", success=1, trials="visits")
    refused(ConfigError, "success is [1]; expected one value of the outcome", "ill ~ age", success=[1])


def test_sites_are_frames():
    refused(ConfigError, "sites is one frame; expected a dictionary of frames", frames=COHORT)
    refused(ConfigError, "sites is one frame; expected a dictionary of frames", frames=as_dictionary(COHORT))
    refused(ConfigError, "a site is named 3; expected a text", frames={3: COHORT})
    ragged = {**as_dictionary(COHORT), "age": np.zeros(4)}
    refused(DataError, "site 'a': column 'age' has 4 rows but the first column has 90", frames={"a": ragged})
    refused(
        DataError,
        "column 'age' has shape (90, 2); expected one value a row",
        frames={"a": {**ragged, "age": np.zeros((90, 2))}},
    )


def test_dividing_needs_a_site_for_every_row():
    with pytest.raises(DataError, match="there is no column 'hospitl' to divide by; did you mean 'hospital'"):
        divide(COHORT, "hospitl")
    gaps = COHORT.copy()
    gaps.loc[5, "hospital"] = None
    with pytest.raises(DataError, match="row 5: column 'hospital' is missing; expected a site"):
        divide(gaps, "hospital")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("drug", "z", "row 2: column 'drug' is 'z', a level that no site had; expected one of 'a', 'b', 'c'"),
        ("stage", 7, "row 2: column 'stage' is 7, a level that no site had; expected one of 1, 2, 3, 4"),
        ("sex", "Male", "row 2: column 'sex' is 'Male', a level that no site had"),
    ],
)
def test_a_new_level_is_no_prediction(column, value, message):
    design, _ = designs("outcome ~ drug + C(stage) + C(sex)", hospitals(COHORT))
    with pytest.raises(DataError, match=re.escape(message)):
        design.matrix(changed("north", column, 2, value)["north"], outcome=False)


def test_new_rows_have_the_columns_and_kinds_of_the_model():
    design, _ = designs("outcome ~ age", hospitals(COHORT))
    with pytest.raises(DataError, match="the frame has no column 'age'; did you mean 'Age'"):
        design.matrix(COHORT.rename(columns={"age": "Age"}), outcome=False)
    with pytest.raises(DataError, match="row 0: column 'age' is '1'; expected a number, as in the model"):
        design.matrix({"age": ["1", "2"]}, outcome=False)
    with pytest.raises(DataError, match="the frame is ndarray; expected a data frame"):
        design.matrix(np.zeros((3, 3)), outcome=False)


def test_a_saved_design_that_means_something_else():
    saved = designs("outcome ~ age", hospitals(COHORT))[0].as_dict()
    with pytest.raises(ConfigError, match="a saved design lacks 'formula'"):
        Design.from_dict({key: value for key, value in saved.items() if key != "formula"})
    with pytest.raises(ConfigError, match="but its formula gives 'Intercept', 'age' here"):
        Design.from_dict({**saved, "names": ["Intercept", "AGE"]})
    with pytest.raises(ConfigError, match="unknown role in a saved design 'weight'; did you mean 'weights'"):
        Design.from_dict({**saved, "roles": {"weight": "age"}})
