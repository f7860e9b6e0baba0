"""A hyper-parameter is read, checked and written by its domain, whatever it is called: wherever it is given."""

import json
import tomllib
from fractions import Fraction
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import fedlap
from fedlap import Algorithm, Domain, Dual, Point, algorithm, choice, damping, fold, hyper, linear, optional, square
from fedlap.algorithms import ALGORITHMS
from fedlap.checks import is_number, is_whole
from fedlap.cli.main import app
from fedlap.data import LOADERS
from fedlap.data.partition import Partition
from fedlap.domains import FromRun
from fedlap.errors import ConfigError
from fedlap.experiments import spec
from fedlap.experiments import sweep as sweeps
from fedlap.experiments.results import Result, load
from fedlap.experiments.spec import of_spec
from fedlap.registry import source_of
from sweeping import run

RATIO = Domain(
    "a ratio such as 1/3",
    lambda value: isinstance(value, Fraction) and 0 < value <= 1,
    parse=lambda plain: Fraction(plain) if isinstance(plain, str) else plain,
    format=str,
)


PARTS = {"plain": 1, "halved": 2, "thirds": 3}


@algorithm
class Paced(Algorithm[Point, Dual, Point, Dual]):
    """
    w_k ← argmin_w  ℓ_k(w) + δ v_kᵀw + ½δ‖w − w_g‖²
    v_k ← v_k + pace · part · (w_k − w_g),    or at most limit · (w_k − w_g)
    w_g ← Σ_k v_k
    """

    delta: float = hyper("positive")
    pace: object = hyper("damping", default=fedlap.then(fedlap.by_share, fedlap.evenly, after=1))
    limit: float | None = hyper("optional positive", default=None)
    above: int | None = hyper(optional(Domain("a whole number", is_whole)), static=True, default=None)
    kind: str = hyper(choice(*PARTS), static=True, default="plain")
    part: Fraction = hyper(RATIO, static=True, default=Fraction(1))

    def init(self, s, start):
        return Point(s.zeros), Dual(s.zeros)

    def client_update(self, g, t, k):
        cavity = fold(self.delta * linear(t.v) + self.delta / 2 * square(around=g.w))
        return Point(k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start))

    def factor_update(self, g, t, q, k):
        step = damping(self.pace, k) * float(self.part) / PARTS[self.kind]
        step = step if self.limit is None else jnp.minimum(step, self.limit)
        return Dual(t.v + step * (q.w - g.w))

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        return Point(c.sum(lambda k: k.v))


FILE = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[solver]
epochs = 1
[train]
rounds = 1
seeds = [1]
[algorithms.paced]
delta = 1
"""
TABLE = tomllib.loads(FILE)
SCHEDULE = {"first": 1, "second": "evenly", "after": 2}
MEANT = fedlap.then(1.0, fedlap.evenly, after=2)
GIVEN = [  # the key, what a file says, what it means
    ("pace", "evenly", fedlap.evenly),
    ("pace", 1, 1.0),
    ("pace", SCHEDULE, MEANT),
    ("limit", "none", None),
    ("limit", 1, 1.0),
    ("above", "none", None),
    ("above", 3, 3),
    ("kind", "halved", "halved"),
    ("part", "2/3", Fraction(2, 3)),
]


@pytest.fixture(autouse=True)
def paced(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "paced", Paced)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def toml(value):
    """A value as TOML writes it inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def read(file, overrides=()):
    """The spec in a file, with some `key=value` of the command line."""
    return spec.resolve(*spec.read_table(file), overrides=overrides)


@pytest.mark.parametrize(("key", "plain", "value"), GIVEN)
def test_a_value_from_a_file_and_from_the_command_line(file, key, plain, value):
    meant = Paced(delta=1.0, **{key: value})
    for word in {toml(plain), plain if isinstance(plain, str) else toml(plain)}:  # a word with and without quotes
        assert read(file, overrides=[f"{key}={word}"]).make_algorithm() == meant
        assert read(file, overrides=[f"paced.{key}={word}"]).make_algorithm() == meant
    file.write_text(f"{FILE}{key} = {toml(plain)}\n")
    assert read(file).make_algorithm() == meant


@pytest.mark.parametrize(("key", "plain", "value"), GIVEN)
def test_a_value_is_written_and_read_back(file, key, plain, value):
    """By way of JSON; the same run, whichever way it was said."""
    said = read(file, overrides=[f"{key}={toml(plain)}"])
    table = json.loads(json.dumps(said.as_dict()))
    again = spec.resolve(table.pop("name"), table)
    assert again == said and of_spec(again) == of_spec(said)
    assert again.make_algorithm() == Paced(delta=1.0, **{key: value})


def test_defaults_are_filled_in_and_read_back(file):
    made = read(file)
    pace = {"first": "by_share", "second": "evenly", "after": 1}
    filled = {"delta": 1.0, "pace": pace, "limit": None, "above": None, "kind": "plain", "part": "1"}
    assert made.algorithms == {"paced": filled} and made.make_algorithm() == Paced(delta=1.0)
    assert of_spec(made) != of_spec(read(file, overrides=["part=1/2"]))


@pytest.mark.parametrize(
    ("key", "word", "message"),
    [
        ("pace", "1.5", r"Paced: pace is 1\.5; expected a number in \(0, 1\]"),
        ("pace", "evenley", r"algorithms\.paced\.pace: unknown rule 'evenley'; did you mean 'evenly'\?"),
        ("pace", "{first = 2, second = 1, after = 1}", r"algorithms\.paced\.pace: then: first is 2\.0; expected"),
        ("pace", "true", "Paced: pace is True; expected a number"),
        ("limit", "0", r"Paced: limit is 0\.0; expected a number above 0, or none"),
        ("limit", "nothing", "Paced: limit is 'nothing'; expected a number above 0, or none"),
        ("above", "1.5", r"Paced: above is 1\.5; expected a whole number, or none"),
        ("kind", "halve", r"""Paced: kind is 'halve'; expected "plain", "halved" or "thirds"$"""),
        ("part", "3/2", r"Paced: part is Fraction\(3, 2\); expected a ratio such as 1/3"),
        ("part", "a third", r"algorithms\.paced\.part is 'a third'; expected a ratio such as 1/3"),
        ("part", "'1/0'", r"algorithms\.paced\.part is '1/0'; expected a ratio such as 1/3"),
    ],
)
def test_a_value_outside_its_domain_is_refused_by_name(file, key, word, message):
    with pytest.raises(ConfigError, match=message):
        read(file, overrides=[f"{key}={word}"])


AXES = {
    "pace": ["evenly", 1, SCHEDULE],
    "limit": ["none", 0.5],
    "kind": ["plain", "halved"],
    "part": ["1/2", "1/3"],
}


def grid(axes=AXES):
    return sweeps.make("mine", {**TABLE, "sweep": {"validation": 0, "paced": axes}})


def test_every_domain_is_an_axis():
    made = [cell.spec.make_algorithm() for cell in grid().final()]
    assert len({cell.digest for cell in grid().final()}) == len(made) == 24
    assert {repr(each.pace) for each in made} == {"evenly", "1.0", "then(1.0, evenly, after=2)"}
    assert {each.part for each in made} == {Fraction(1, 2), Fraction(1, 3)}
    assert {(each.limit, each.kind) for each in made} == {(a, b) for a in (None, 0.5) for b in ("plain", "halved")}


@pytest.mark.parametrize(
    ("only", "kept"),
    [
        ("pace=evenly", ["evenly"]),
        ("pace=1.0", [1]),
        ('pace={after = 2, first = 1.0, second = "evenly"}', [SCHEDULE]),
        ('pace={first = 1, second = "evenly", after = 2},evenly', ["evenly", SCHEDULE]),
        ("limit=none", ["none"]),
        ("limit=.5", [0.5]),
        ("kind=plain,halved", ["plain", "halved"]),
        ("part=1/3", ["1/3"]),
        ("part=2/6", ["1/3"]),
    ],
)
def test_only_some_values_of_an_axis(only, kept):
    key = only.partition("=")[0]
    assert grid().narrow([only]).axes["paced"] == {**AXES, key: kept}


@pytest.mark.parametrize("only", ["pace=by_share", "pace=true", "limit=0", "kind=thirds", "part=3/3", "part=1/0"])
def test_what_an_axis_does_not_have(only):
    key, _, word = only.partition("=")
    with pytest.raises(ConfigError, match=f"{key} has no value '{word}'; it has "):
        grid().narrow([only])


def test_a_sweep_runs_writes_its_lines_and_knows_them_again(tmp_path):
    path = tmp_path / "mine.jsonl"
    sweep = grid({"pace": ["evenly", SCHEDULE], "limit": ["none", 0.01], "part": ["1/3"]})
    _, results = run(sweep, path)
    assert len({result.curves["test"].nll[-1] for result in results}) == 3  # 0.01 is less than either pace
    assert load(path) == [Result.read(line) for line in path.read_text().splitlines()] == results
    by_cell = {result.cell: result for result in results}  # programs that run beside each other end in any order
    for cell in sweep.final():
        result = by_cell.pop(cell.digest)
        table = dict(result.spec)
        assert spec.resolve(table.pop("name"), table).make_algorithm() == cell.spec.make_algorithm()
        assert result.setting == cell.setting
    assert not by_cell
    _, again = run(sweep, path)
    assert again == []


def test_a_simulation_takes_them():
    heart = fedlap.data.heart()
    nll = lambda **given: fedlap.simulate(
        Paced(delta=1.0, **given), heart, fedlap.logistic(), solver=fedlap.adam(epochs=1), rounds=1
    ).nll[-1]
    values = [nll(), nll(pace=0.5), nll(limit=0.01), nll(kind="halved"), nll(part=Fraction(1, 3))]
    assert len(set(values)) == len(values)


def test_the_command_line_shows_them():
    shown = CliRunner().invoke(app, ["algorithms"], env={"COLUMNS": "300"}).stdout
    pace = 'pace={first = "by_share", second = "evenly", after = 1}'
    assert f"paced  delta, {pace}, limit=none, above=none, kind=plain, part=1\n" in shown


def test_a_domain_has_a_name_or_is_one():
    with pytest.raises(ConfigError, match=r"unknown domain 'postive'; did you mean 'positive'\?"):
        hyper("postive")
    with pytest.raises(ConfigError, match="hyper: domain is 3; expected a Domain, or one of positive"):
        hyper(3)


def test_a_rule_of_ones_own_is_for_python_only(file, monkeypatch):
    """A file has no name for it."""

    @fedlap.algebra.pytrees.pytree
    class Halving:
        def __call__(self, k):
            return 0.5 ** (k.round + 1)

    assert Paced(delta=1.0, pace=Halving()).pace == Halving()

    @algorithm
    class Other(Paced):
        pace: object = hyper("damping", default=Halving())

    monkeypatch.setitem(ALGORITHMS, "paced", Other)
    with pytest.raises(ConfigError, match=r"algorithms\.paced\.pace: unknown rule '.*Halving\(\)'"):
        read(file)
    assert read(file, overrides=["pace=evenly"]).make_algorithm() == Other(delta=1.0, pace=fedlap.evenly)


# Arguments of functions.

EVEN = fedlap.homogeneous()


def test_a_data_set_says_what_a_run_fills_in(monkeypatch):
    """By a note at the argument, not by its name: one that is called seed is filled in like any other."""
    calls = []

    def drawn(
        shuffle: Annotated[int, FromRun.SEED] = 0,
        folder: Annotated[str | None, FromRun.DATA_DIR] = None,
        seed: int = 7,
        cut: Partition = EVEN,
    ):
        calls.append((shuffle, folder, seed, cut))
        return fedlap.data.heart()

    monkeypatch.setitem(LOADERS, "drawn", drawn)
    resolved = lambda **given: spec.resolve("mine", {**TABLE, "federation": {"dataset": "drawn", **given}})
    silent, said = resolved(), resolved(shuffle=0, cut="dirichlet")
    assert silent.federation == {"dataset": "drawn", "seed": 7, "cut": {"name": "homogeneous"}}
    silent.make_federation(5, "here"), said.make_federation(5)
    assert calls == [(5, "here", 7, fedlap.homogeneous()), (0, None, 7, fedlap.dirichlet())]
    silent, said = (of_spec(each)["federation"] for each in (silent, said))
    assert silent == {"drawn": {"seed": 7, "cut": {"homogeneous": {}}, **source_of(drawn)}}
    assert said == {"drawn": {"seed": 7, "shuffle": 0, "cut": {"dirichlet": {}}, **source_of(drawn)}}


# Numbers.


def test_what_a_number_is():
    """True is none; an array of one number is one."""
    assert all(map(is_number, (1, 0.5, np.float32(1), np.asarray(2.0), jnp.asarray(2), Fraction(1, 2))))
    wrong = (True, "1", None, float("nan"), float("inf"), np.ones(1), np.asarray("1"), np.True_, 10**400, 1j)
    assert not any(map(is_number, wrong))
    assert all(map(is_whole, (0, 1, np.int64(3)))) and not any(map(is_whole, (-1, True, 1.0, "1", None)))
    assert is_whole(3, least=3, most=3) and not is_whole(2, least=3) and not is_whole(4, most=3)


@pytest.mark.parametrize("rounds", [True, 0, 1.0, "2", 10**15])
def test_rounds_are_counted(rounds):
    with pytest.raises(
        ConfigError, match=rf"^rounds is {rounds!r}; expected a whole number above 0, at most 1,000,000$"
    ):
        fedlap.simulate(fedlap.FedAvg(), fedlap.data.heart(), fedlap.logistic(), rounds=rounds)


# What shows itself can be pasted.


@pytest.mark.parametrize(
    "thing",
    [
        fedlap.adam(epochs=2, clip=1.0),
        fedlap.descent(steps=3),
        fedlap.lbfgs(),
        fedlap.newton(steps=7),
        fedlap.evenly,
        fedlap.by_share,
        fedlap.then(fedlap.by_share, fedlap.then(0.5, fedlap.evenly, after=3), after=10),
        fedlap.FedLapCov(delta=0.1, covariance="full"),
        fedlap.FedLap(delta=0.1, rho=fedlap.then(fedlap.by_share, fedlap.evenly)),
        fedlap.dirichlet(sizes=2.0),
        fedlap.homogeneous(),
        fedlap.label_rate(counts=[[1, 2], [3, 4]]),
    ],
    ids=repr,
)
def test_what_is_shown_can_be_pasted(thing):
    names = {name: getattr(fedlap, name) for name in fedlap.__all__}
    assert eval(repr(thing), names) == thing
    assert repr(eval(repr(thing), names)) == repr(thing)


def test_a_rule_shows_itself_as_it_is_written():
    assert repr(fedlap.then(fedlap.by_share, fedlap.evenly)) == "then(by_share, evenly, after=10)"
    assert repr(fedlap.FedLap(delta=1.0)) == "FedLap(delta=1.0, rho=by_share)"
    assert repr(fedlap.newton()) == "newton(steps=100)"
