"""A study's file as text, with the comments that a person needs to edit it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedlap.study.agreement.sections import DEFAULT_ADDRESS
from fedlap.study.table.columns import Column, Target

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
MODEL = """\
name = "logistic"        # or "mlp", with hidden = [20]
bias = true"""
ALGORITHM = {"name": "fedlap_cov", "delta": 1.0}

TEXT = """\
# {name}: what the members agree on. Every member has the same copy of this file; only [network] may differ.
# Check a file against it, which sends nothing:  fedlap study check study.toml --data FILE.csv

[study]
name = {name}
members = {members}
rounds = {rounds}
seed = 0                 # of everything random
minimum_rows = 10        # a member with fewer rows to train on is refused: sums would tell about single patients
test_fraction = 0.2      # of its rows each member keeps back, to report how well the model does on them
share_points = {share_points}     # true: the members consent to show each other some patients' inputs (FedLap-Func)
ignored_columns = {ignored}     # columns that a file may have and nobody reads, such as "patient_id"

# One line a column of the members' files. An empty cell is a missing value; missing = "refuse" does not allow it,
# "drop" leaves out its row, "mean" (numbers) puts the mean of all members' rows there, and "category" (categories)
# counts it as the category "missing", which must be listed. A value outside minimum .. maximum is refused.
# The first category is the reference that the others are compared with.
{warning}[columns]
{columns}

[target]
name = {target}
classes = {classes}
missing = {target_missing}

[model]
{model}

[solver]                 # what each member does with its own rows in a round
name = "adam"
epochs = 5
batch = 4
learning_rate = 1e-2

[algorithm]              # fedlap algorithms  lists them all
{algorithm}

# [robust]               # one member may move the model, in a round, by so often what the middle member moves it by
# bound = 3.0

[network]                # the coordinator's: may be changed while the study is under way
address = {address}      # of the server, as the members reach it; for a new host:  fedlap study certificate STUDY
quorum = {quorum}               # as many members must answer in a round; below it the run waits
deadline = {deadline}           # seconds a member has for one round; after it the round goes on without the member
retries = 3              # how often a member that does not answer is asked again
"""

REGRESSION = """\
# {name}: what the members agree on. Every member has the same copy of this file; only [network] may differ.
# Check a file against it, which sends nothing:  fedlap study check study.toml --data FILE.csv

[study]
name = {name}
members = {members}
minimum_rows = 10        # a member with fewer rows is refused: sums would tell about single patients
ignored_columns = {ignored}     # columns that a file may have and nobody reads, such as "patient_id"

# One line for each column that the regression uses, the outcome too. An empty cell is a missing value:
# missing = "refuse" does not allow it, "drop" leaves out its row. A value outside minimum .. maximum is refused.
# The first category is the reference that the others are compared with.
{warning}[columns]
{columns}

# family = "gaussian", "binomial", "poisson", "negative_binomial", "gamma" or "multinomial"; or, for a Cox regression,
# duration, event and ties ("efron" or "breslow"), and a formula without left side. weights, offset, exposure and
# trials name columns; success is the category of a binomial outcome that counts. prior_sd = 2.5 is a weak prior.
[regression]
{regression}

[network]                # the coordinator's: may be changed while the study is under way
address = {address}      # of the server, as the members reach it; for a new host:  fedlap study certificate STUDY
deadline = {deadline}           # seconds a member has for one round; after it, it is asked again
retries = 3              # how often within these a member that does not answer is asked again
"""

DRAFTED = """\
# DRAFTED from members' files: types, categories and ranges are guesses. Read every line before you share this.
"""


def study_text(
    name: str,
    members: Sequence[str],
    columns: Sequence[Column],
    target: Target,
    *,
    ignored: Sequence[str] = (),
    address: str = DEFAULT_ADDRESS,
    rounds: int = 20,
    algorithm: dict[str, Any] | None = None,
    share_points: bool = False,
    quorum: int | None = None,
    deadline: float = 300,
    drafted: bool = False,
    model: dict[str, Any] | None = None,
) -> str:
    """The text of study.toml; `algorithm` and `model` are tables of a name and arguments, `quorum` all by default."""
    algorithm = ALGORITHM if algorithm is None else algorithm
    return TEXT.format(
        name=_value(name),
        members=_value(list(members)),
        rounds=rounds,
        share_points=_value(share_points),
        ignored=_value(list(ignored)),
        warning=DRAFTED if drafted else "",
        columns="\n".join(f"{_key(column.name)} = {_column(column)}" for column in columns),
        target=_value(target.name),
        classes=_value(list(target.classes)),
        target_missing=_value(target.missing),
        model=MODEL if model is None else "\n".join(f"{_key(key)} = {_value(value)}" for key, value in model.items()),
        algorithm="\n".join(f"{_key(key)} = {_value(value)}" for key, value in algorithm.items()),
        address=_value(address),
        quorum=len(members) if quorum is None else quorum,
        deadline=_value(deadline),
    )


def regression_text(
    name: str,
    members: Sequence[str],
    columns: Sequence[Column],
    settings: Mapping[str, Any],
    *,
    address: str = DEFAULT_ADDRESS,
    ignored: Sequence[str] = (),
    deadline: float = 300,
    drafted: bool = False,
) -> str:
    """The text of a regression's study.toml; `settings` is the table [regression], in which None says nothing."""
    said = {key: value for key, value in settings.items() if value is not None}
    return REGRESSION.format(
        name=_value(name),
        members=_value(list(members)),
        ignored=_value(list(ignored)),
        warning=DRAFTED if drafted else "",
        columns="\n".join(f"{_key(column.name)} = {_column(column)}" for column in columns),
        regression="\n".join(f"{_key(key)} = {_value(value)}" for key, value in said.items()),
        address=_value(address),
        deadline=_value(deadline),
    )


def _column(column):
    table = {key: value for key, value in column.as_dict().items() if key != "missing" and value != ""}
    pairs = [f"{key} = {_value(value)}" for key, value in {**table, "missing": column.missing}.items()]
    return "{ " + ", ".join(pairs) + " }"


def _key(text):
    return text if BARE_KEY.fullmatch(text) else _value(text)


def _value(value):
    """A TOML value; JSON's strings, truth values, numbers and lists are also TOML's."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, ensure_ascii=False)
