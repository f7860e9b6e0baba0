"""Algorithms, models, solvers and data sets that are not the package's own, named in a settings file."""

import importlib.metadata
import json
import sys
import textwrap

import pytest
from typer.testing import CliRunner

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.cli.main import app
from fedlap.errors import ConfigError
from fedlap.experiments import sweep
from fedlap.registry import Registry, source_of
from fedlap.study.agreement import contract

OWN = '''
"""Halfway: FedAvg that goes a part of the way."""

from typing import Annotated

import numpy as np

import fedlap
from fedlap.domains import FromRun


@fedlap.algorithm
class Halfway(fedlap.Algorithm):
    """w_g ← (1 − part) w_g + part Σ_k w_k / K"""

    part: float = fedlap.hyper("positive", default=0.5)
    mean_loss = True

    def init(self, s, start):
        return fedlap.Point(start), ()

    def client_update(self, g, t, k):
        return fedlap.Point(k.argmin(lambda w, k: k.loss(w) / k.n, k.start))

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return q

    def server_update(self, g, c, s):
        return fedlap.Point((1 - self.part) * g.w + self.part * c.mean(lambda k: k.w))


def small(width=3):
    return fedlap.mlp(hidden=(width,))


def drawn(clients=2, seed: Annotated[int, FromRun.SEED] = 0):
    rng = np.random.default_rng(seed)
    pair = lambda: (rng.normal(size=(12, 2)), rng.integers(0, 2, 12))
    return fedlap.Federation.from_arrays(clients=[pair() for _ in range(clients)], test=pair(), classes=2)


def nothing():
    return None


not_callable = 3
'''
SPEC = """
[federation]
dataset = "my_methods:drawn"
clients = 3
[model]
name = "my_methods:small"
width = 4
[solver]
name = "adam"
epochs = 1
batch = 6
[train]
rounds = 2
seeds = [0]
[algorithms.fedavg]
[algorithms."my_methods:Halfway"]
part = 0.25
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A working directory with a module and a settings file; the module is forgotten afterwards."""
    (tmp_path / "my_methods.py").write_text(OWN)
    (tmp_path / "my.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    sys.modules.pop("my_methods", None)


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def test_a_settings_file_names_code_of_ones_own(own):
    done = invoke("run", "my.toml", "--output", "out", "--set", "my_methods:Halfway.part=0.75", "--jobs", "1")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (own / "out" / "results.jsonl").read_text().splitlines()]
    by_name = {line["algorithm"]: line for line in lines}
    assert set(by_name) == {"fedavg", "my_methods:Halfway"}
    spec = by_name["my_methods:Halfway"]["spec"]
    assert spec["algorithms"] == {"my_methods:Halfway": {"part": 0.75}}
    assert spec["model"] == {"name": "my_methods:small", "width": 4}
    assert spec["federation"] == {"dataset": "my_methods:drawn", "clients": 3}
    again = invoke("run", "--resume", "out")
    assert again.exit_code == 0 and len((own / "out" / "results.jsonl").read_text().splitlines()) == 2
    assert "Halfway" in (own / "out" / "table.md").read_text()


def test_the_model_is_the_one_named(own):
    (cell, *_) = sweep.read("my.toml").final()
    federation = cell.spec.make_federation(cell.seed)
    assert len(federation.clients) == 3
    run = fedlap.Simulation.of(cell.spec.make_algorithm(), federation, cell.spec.make_model())
    assert run.size == 2 * 4 + 4 + 4 * 2 + 2


def test_other_code_is_another_run(own):
    digests = lambda: {cell.algorithm: cell.digest for cell in sweep.read("my.toml").final()}
    before = digests()
    (own / "my_methods.py").write_text(OWN.replace("1 - self.part", "1.0 - self.part"))
    after = digests()
    assert before.keys() == after.keys() and all(before[name] != after[name] for name in before)


def test_the_packages_own_code_is_known_by_its_revision():
    assert source_of(fedlap.FedAvg) == {} == source_of(fedlap.logistic)


@pytest.mark.parametrize(
    "name, words",
    [
        ("my_methods:Halfwya", "did you mean 'Halfway'"),
        ("my_methods:not_callable", "of type int; expected a subclass of fedlap.Algorithm"),
        ("my_methods:small", "of type function; expected a subclass of fedlap.Algorithm"),
        ("no_such_module:Method", "no_such_module cannot be imported (ModuleNotFoundError"),
        ("my_methods:", 'expected "module:name"'),
        ("../my_methods:Halfway", 'expected "module:name"'),
    ],
)
def test_what_is_not_there_is_told(own, name, words):
    with pytest.raises(ConfigError) as raised:
        ALGORITHMS[name]
    assert words in str(raised.value) and name in str(raised.value)


def test_a_data_set_that_is_none_is_told(own):
    with pytest.raises(ConfigError, match="my_methods:nothing returned NoneType; expected a Federation"):
        fedlap.data.load("my_methods:nothing")


def test_an_installed_package_offers_methods(own, monkeypatch):
    point = importlib.metadata.EntryPoint("halfway", "my_methods:Halfway", "fedlap.algorithms")
    shadow = importlib.metadata.EntryPoint("fedavg", "my_methods:Halfway", "fedlap.algorithms")
    monkeypatch.setattr("fedlap.registry.entry_points", lambda group: [point, shadow])
    makers = Registry("algorithms", dict(ALGORITHMS), ALGORITHMS.expected, ALGORITHMS.fits)
    sys.path.append(str(own))
    assert "halfway" in makers and makers["halfway"].__name__ == "Halfway" and makers.get("halfway") is not None
    assert makers["fedavg"] is fedlap.FedAvg
    assert list(makers) == list(ALGORITHMS) and not makers.is_packaged("halfway")
    assert makers.get("nobody") is None
    with pytest.raises(KeyError):
        makers["nobody"]


@pytest.mark.parametrize("section", ["algorithm", "model", "solver", "server_solver"])
def test_a_study_takes_the_packages_own_code_alone(own, section):
    """A study's file comes from others: what it names is not even imported."""
    (own / "my_methods.py").write_text("raise SystemExit('somebody else is running code here')")
    table = {"algorithm": {"name": "fedavg"}, "model": {"name": "logistic"}, section: {"name": "my_methods:Halfway"}}
    with pytest.raises(ConfigError, match="takes the package's own code alone"):
        contract._method(None, table)
    assert "my_methods" not in sys.modules


def test_the_command_lists_what_is_installed(own, monkeypatch):
    point = importlib.metadata.EntryPoint("halfway", "my_methods:Halfway", "fedlap.algorithms")
    monkeypatch.setitem(ALGORITHMS.__dict__, "installed", {"halfway": point})
    sys.path.append(str(own))
    done = invoke("algorithms")
    assert done.exit_code == 0, done.output
    assert "halfway  part=0.5" in textwrap.dedent(done.output)
