"""What was said makes a thing what it is: one more argument with a default orphans nothing and refuses nothing."""

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import fedlap.experiments.spec
from fedlap import identity
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.pytrees import register
from fedlap.algebra.vector import Vector
from fedlap.algorithms import ALGORITHMS
from fedlap.data import LOADERS, PARTITIONS
from fedlap.errors import DataError
from fedlap.experiments import results
from fedlap.experiments import sweep as cells
from fedlap.experiments.spec import Train, resolve
from fedlap.experiments.sweep import Cell
from fedlap.models import MODELS, curvature, likelihood, network
from fedlap.models.blueprint import LAYERS
from fedlap.run.grid import Grid
from fedlap.solvers import SERVER_SOLVERS, SOLVERS
from fedlap.study import model as fitted
from fedlap.study.agreement import contract, sections
from fedlap.study.table import columns
from methods import HYPER, NEEDED, eventful, finish
from reproduction.rows import HERE
from studies import study
from study_models import SETTINGS, save_model, weights

EXTRA = "one_more"


def grown(maker):
    """A class with one more field, or a function with one more keyword, as if it had been written there."""
    if inspect.isclass(maker):
        field = (EXTRA, float, hyper("nonnegative", static=True, default=0.0))
        longer = dataclasses.make_dataclass(maker.__name__, [field], bases=(maker,), frozen=True, kw_only=True)
        longer.__module__ = maker.__module__
        return register(longer)
    signature = inspect.signature(maker)
    more = inspect.Parameter(EXTRA, inspect.Parameter.KEYWORD_ONLY, default=0.0)

    @functools.wraps(maker)
    def longer(*args, one_more=0.0, **keywords):
        return maker(*args, **keywords)

    longer.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])
    return longer


def settings(**changes):
    table = {
        "federation": {"dataset": "credit"},
        "model": {"name": "logistic"},
        "algorithms": {"fedlap": {"delta": 0.5}},
        "train": {"seeds": [1]},
    }
    return {section: {**table.get(section, {}), **changes.get(section, {})} for section in (*table, *changes)}


def cell(table, held_out=0.0):
    (algorithm,) = table["algorithms"]
    return Cell(algorithm, {}, 1, held_out, resolve("any name", table))


def digest(**changes):
    return cell(settings(**changes)).digest


KINDS = {  # where a maker is looked up, its name there, and the section that names it
    **{f"algorithm {name}": (ALGORITHMS, name, "algorithms") for name in ALGORITHMS},
    **{f"solver {name}": (SOLVERS, name, "solver") for name in SOLVERS},
    **{f"server solver {name}": (SERVER_SOLVERS, name, "server_solver") for name in SERVER_SOLVERS},
    **{f"model {name}": (MODELS, name, "model") for name in MODELS},
    **{f"data {name}": (LOADERS, name, "federation") for name in LOADERS if name != "files"},  # which needs some
    "partition dirichlet": (PARTITIONS, "dirichlet", "partition"),
    "train": (vars(fedlap.experiments.spec), "Train", "train"),
}


def choosing(section, name, **more):
    """A table in which the named maker has these arguments besides those that it needs."""
    table = settings()
    if section == "algorithms":
        table["algorithms"] = {name: {**HYPER[name], **more}}
    elif section == "federation":
        table["federation"] = {"dataset": name, **more}
    elif section == "partition":
        table["federation"] = {"dataset": "mnist", "partition": {"name": name, "sizes": 3, **more}}
    elif section == "train":
        table["train"] |= more
    else:
        table[section] = {"name": name, **NEEDED.get(name, {}), **more}
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_argument_with_a_default_changes_no_key(kind, monkeypatch):
    makers, name, section = KINDS[kind]
    before = cell(choosing(section, name)).digest
    monkeypatch.setitem(makers, name, grown(makers[name]))
    assert cell(choosing(section, name)).digest == before
    assert cell(choosing(section, name, one_more=0.0)).digest == before
    assert cell(choosing(section, name, one_more=1.0)).digest != before


def lines(sweep):
    """Made-up results of all of a sweep's cells on all rows."""
    curves = {"test": results.Curve([0.5], [1.0])}
    return [results.Result.of(each, curves, 1.0, classes=2).line() for each in sweep.final()]


def test_one_more_argument_orphans_no_result(monkeypatch, tmp_path):
    file, sweep = tmp_path / "flamby.jsonl", cells.read(HERE / "specs/flamby.toml", ["fedlap", "fedlap_cov"])
    file.write_text("".join(lines(sweep)))
    found = lambda: {result.cell for result in sweep.select(results.load(file))}
    before = found()
    assert len(before) == len({json.loads(line)["cell"] for line in file.read_text().splitlines()}) == 180
    for makers, name in ((SOLVERS, "adam"), (SERVER_SOLVERS, "descent"), (MODELS, "logistic"), (LOADERS, "heart")):
        monkeypatch.setitem(makers, name, grown(makers[name]))
    for name in ("fedlap", "fedlap_cov"):
        monkeypatch.setitem(ALGORITHMS, name, grown(ALGORITHMS[name]))
    monkeypatch.setattr(fedlap.experiments.spec, "Train", grown(Train))
    assert found() == before


def grow_a_study(monkeypatch, kind):
    """One more argument of something that a study names, or of one of its own sections."""
    if kind == "study":
        longer = grown(sections.General)
        monkeypatch.setattr(sections, "General", longer)
        monkeypatch.setattr(contract, "General", longer)
        monkeypatch.setattr(contract.Study, EXTRA, 0.0, raising=False)
    elif kind in ("Column", "Target"):
        longer, shorter = grown(getattr(columns, kind)), getattr(columns, kind).as_dict
        longer.as_dict = lambda self: {**shorter(self), EXTRA: getattr(self, EXTRA)}
        monkeypatch.setattr(contract, kind, longer)
    else:
        makers, name = {
            "algorithm": (ALGORITHMS, "fedlap"),
            "solver": (SOLVERS, "adam"),
            "server_solver": (SERVER_SOLVERS, "annealed"),
            "model": (MODELS, "logistic"),
        }[kind]
        monkeypatch.setitem(makers, name, grown(makers[name]))


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path)


STUDIES = ("algorithm", "solver", "server_solver", "model", "study", "Column", "Target")


@pytest.mark.parametrize("kind", STUDIES)
def test_one_more_argument_is_the_same_study_and_refuses_none_of_its_models(kind, model, monkeypatch):
    before = study().digest
    grow_a_study(monkeypatch, kind)
    assert study().digest == before
    if kind in ("algorithm", "solver", "server_solver", "model"):
        named = {"solver": {"name": "adam"}, "server_solver": {"name": "annealed"}}.get(kind, {})
        assert study(**{kind: {**named, EXTRA: 0.0}}).digest == before
        assert study(**{kind: {**named, EXTRA: 1.0}}).digest != before
    assert fitted.load(model).study.digest == SETTINGS.digest


def test_a_model_that_was_saved_with_every_default_in_its_digest_is_read(model):
    card = json.loads((model / "card.json").read_text())
    card |= {"format": 1, "digest": hashlib.sha256(json.dumps(card["study"], sort_keys=True).encode()).hexdigest()}
    (model / "card.json").write_text(json.dumps(card))
    assert np.array_equal(Vector(fitted.load(model).weights), Vector(weights()))
    card["study"]["study"]["seed"] = 7
    (model / "card.json").write_text(json.dumps(card))
    with pytest.raises(DataError, match=r"its digest .*has been changed"):
        fitted.load(model)
    (model / "card.json").write_text(json.dumps({**card, "format": [1]}))
    with pytest.raises(DataError, match=r"a model of format \[1\]; this fedlap reads formats 1 and 2"):
        fitted.load(model)


def test_one_more_argument_refuses_no_checkpoint(tmp_path, monkeypatch):
    """All parts of a run at once."""
    path = tmp_path / "run.npz"
    begun = eventful(likelihood=likelihood.categorical)
    before, first, whole = begun.describe(), finish(begun, 1, checkpoint=path), finish(begun, 2)
    longer = {name: grown(getattr(network, name)) for name in ("Flatten", "Dense")}
    monkeypatch.setattr(network, "Flatten", longer["Flatten"])
    monkeypatch.setattr(network, "Dense", longer["Dense"])
    monkeypatch.setitem(ALGORITHMS, "fedlap_cov", grown(ALGORITHMS["fedlap_cov"]))
    monkeypatch.setattr(fedlap, "adam", grown(fedlap.adam))
    monkeypatch.setattr(fedlap, "descent", grown(fedlap.descent))
    monkeypatch.setattr("fedlap.run.simulation.GaussNewton", grown(curvature.GaussNewton))
    likely = grown(likelihood.Categorical)()
    mine = eventful(likelihood=likely)
    parts = (mine.algorithm, mine.solver, mine.server_solver, mine.setup.task.likelihood, mine.setup.task.curvature)
    assert all(getattr(part, EXTRA) == 0.0 for part in (*parts, *mine.setup.task.model.layers))
    assert mine.describe() == before
    assert eventful(likelihood=likely, hyper={EXTRA: 1.0}).describe() != before
    resumed = finish(mine, 2, checkpoint=path, resume=True)
    assert len(first.nll) == 1 and np.array_equal(resumed.nll, whole.nll)


def test_one_more_argument_is_the_same_grid(monkeypatch):
    def grid():
        drawn = eventful().federation
        pair = (ALGORITHMS["fedlap"](delta=0.5), fedlap.adam(epochs=1, batch=6))
        return Grid.of([pair], [drawn], fedlap.logistic(), seeds=[0], watches=[{}]).describe()

    before = grid()
    monkeypatch.setitem(ALGORITHMS, "fedlap", grown(ALGORITHMS["fedlap"]))
    monkeypatch.setattr(fedlap, "adam", grown(fedlap.adam))
    assert grid() == before


def test_a_default_that_is_said_is_the_same_as_one_that_is_not():
    silent = digest()
    assert silent == digest(federation={"preset": "standard", "split": "heterogeneous"})
    assert silent == digest(model={"bias": False}, solver={"name": "adam", "clip": "none", "batch": 32})
    assert silent == digest(train={"rounds": 20, "participation": 1.0}, algorithms={"fedlap": {"delta": 0.5}})
    assert silent == digest(algorithms={"fedlap": {"delta": 0.5, "rho": "by_share"}})
    assert silent != digest(algorithms={"fedlap": {"delta": 0.5, "rho": "evenly"}})


def test_one_setting_has_one_form():
    rho = {"first": 1, "second": "evenly", "after": 10}
    of_rho = lambda **changes: digest(algorithms={"fedlap": {"delta": 0.5, "rho": {**rho, **changes}}})
    assert of_rho() == of_rho(first=1.0) != of_rho(first=0.5)
    images = lambda **arguments: cell({**settings(), "federation": {"dataset": "mnist", **arguments}}).digest
    assert images() == images(partition="homogeneous") == images(partition={"name": "homogeneous"}, fraction=1)
    assert images() != images(partition="dirichlet") == images(partition={"name": "dirichlet", "sizes": 1})
    assert digest(model={"name": "mlp", "hidden": [200, 100]}) == digest(model={"name": "mlp"})
    assert identity.of((1.0, np.float64(2), jnp.float32(0.5), True)) == [1, 2, 0.5, True]
    assert identity.text(identity.of(1.0)) == "1" != identity.text(identity.of(True))


def test_what_is_no_default_to_leave_out_is_kept():
    """One client is not all clients; a seed of the data is not a new one for every run; a function is not another."""
    assert digest(train={"participation": 1}) != digest(train={"participation": 1.0})
    assert digest(federation={"seed": 0}) != digest() != digest(federation={"seed": 1})
    assert cell(settings(), held_out=0.25).digest != digest()
    drawn = lambda key, shape, fan_in: jnp.ones(shape)
    drawn.__qualname__ = "uniform"
    assert identity.said(network.Dense, {"bias": 1, "width": None}) == {"bias": 1}  # 1 is not true
    assert identity.of(network.Dense(draw=drawn)) != identity.of(network.Dense()) == {"Dense": {}}


def test_of_a_class_of_somebody_else_every_value_counts():
    """Its default may have another value the next time it is seen."""
    noise = lambda level: dataclasses.make_dataclass("Noise", [("level", float, level)], frozen=True)
    assert identity.of(noise(0.1)()) == {"Noise": {"level": 0.1}} != identity.of(noise(0.2)())


PINNED = {
    **{f"algorithm {name}": maker for name, maker in ALGORITHMS.items()},
    **{f"solver {name}": maker for name, maker in {**SOLVERS, **SERVER_SOLVERS}.items()},
    **{f"model {name}": maker for name, maker in MODELS.items()},
    **{f"data {name}": maker for name, maker in LOADERS.items()},
    **{f"partition {name}": maker for name, maker in PARTITIONS.items()},
    **{f"layer {name}": maker for name, maker in LAYERS.items()},
    **{f"curvature {maker.__name__}": maker for maker in (curvature.GaussNewton, curvature.ExactHessian)},
    "likelihood": likelihood.Categorical,
    "section train": Train,
    "section study": sections.General,
    "section columns": columns.Column,
    "section target": columns.Target,
}


def arguments(maker):
    """Their names, in order, with their defaults."""
    words = []
    for each in inspect.signature(maker).parameters.values():
        default = getattr(each.default, "__name__", repr(each.default))  # a function shows its address
        words.append(each.name if each.default is each.empty else f"{each.name}={default}")
    return ", ".join(words)


DEFAULTS = {
    "algorithm fedavg": "",
    "algorithm fedprox": "alpha",
    "algorithm fedadmm": "alpha",
    "algorithm feddyn": "alpha, weight_decay=0.0",
    "algorithm scaffold": "control='gradient', server_rate=1.0",
    "algorithm fednova": "alpha=None",
    "algorithm fedopt": "learning_rate, rule='adam', beta1=0.9, beta2=0.99, tau=0.001",
    "algorithm bcm": "delta, covariance='diagonal'",
    "algorithm pvi": "delta, rho=evenly, samples=10, start_precision=0.0",
    "algorithm fedlap": "delta, rho=by_share",
    "algorithm fedlap_cov": "delta, rho=evenly, covariance='diagonal'",
    "algorithm fedlap_func": "delta, tau=1.0, rho=by_share, memory=1",
    "algorithm fedlap_cov_func": "delta, tau=1.0, rho=evenly, covariance='diagonal', memory=1",
    "algorithm bayes_admm": "delta, rho=1.0, gamma=evenly, tau=1.0, alpha=None, covariance='diagonal', samples=0",
    "algorithm fedep": "delta, rho=evenly, eta=1.0, shared=False, covariance='diagonal'",
    "algorithm fedlap_kron": "delta, rho=evenly, refresh=10",
    "solver adam": "epochs=5, batch=32, learning_rate=0.001, clip=None, keep=False",
    "solver sgd": "epochs=5, batch=32, learning_rate=0.01, momentum=0.0, clip=None",
    "solver optimiser": "optimiser, learning_rate, epochs=5, batch=32, clip=None, keep=False",
    "solver ivon": (
        "epochs=5, batch=32, learning_rate=0.001, momentum=0.9, decay=0.9998, hessian=0.001, cosine=None, keep=False"
    ),
    "solver lbfgs": "steps=100, history=10, tolerance=1e-06",
    "solver newton": "steps=100",
    "solver annealed": "steps=200, learning_rate=0.003, tolerance=0.01, turns=25",
    "solver descent": "steps=5000, learning_rate=0.001, tolerance=0.001",
    "model logistic": "bias=False",
    "model mlp": "hidden=(200, 100), activation='relu'",
    "model zenke_cnn": "",
    "model acar_cnn": "",
    "data files": "files, target, test=None, missing='refuse', seed=0",
    "data heart": "preset='standard'",
    "data credit": "preset='standard', split='heterogeneous', seed=0",
    "data mnist": "clients=10, partition=homogeneous(), fraction=1.0, preset='standard', seed=0, data_dir=None",
    "data fashion_mnist": "clients=10, partition=homogeneous(), fraction=1.0, preset='standard', seed=0, data_dir=None",
    "data cifar10": "clients=10, partition=homogeneous(), fraction=1.0, preset='standard', seed=0, data_dir=None",
    "partition homogeneous": "",
    "partition dirichlet": "sizes=1.0, classes=0.5",
    "partition label_rate": "counts",
    "partition two_classes_per_client": "points=300",
    "partition natural": "groups",
    "layer Dense": "width=None, bias=True, draw=uniform",
    "layer Convolution": "width, size, padding=0, bias=True, draw=uniform",
    "layer Activation": "name",
    "layer Flatten": "",
    "layer MaxPool": "size=2",
    "layer Dropout": "rate",
    "curvature GaussNewton": "samples=0",
    "curvature ExactHessian": "",
    "likelihood": "",
    "section train": "rounds=20, seeds=(0, 1, 2), participation=1.0, target_accuracy=None",
    "section study": (
        "name, members, rounds=20, seed=0, minimum_rows=10, test_fraction=0.2, share_points=False, ignored_columns=()"
    ),
    "section columns": "name, kind, unit='', categories=(), minimum=-inf, maximum=inf, missing='refuse'",
    "section target": "name, classes, missing='refuse'",
}


def test_no_default_has_changed():
    """A default stands in no key, so a changed one would make old results, models and checkpoints mean something else.

    A new value needs an argument of a new name, or of an algorithm a new `revision`, with the old results taken away.
    A new argument with a default, or a new maker, is written down here.
    """
    assert {name: arguments(maker) for name, maker in PINNED.items()} == DEFAULTS


def test_lines_can_be_given_the_keys_of_their_specs():
    path = Path(__file__).parent.parent / "tools/rekey_results.py"
    tool = importlib.util.spec_from_file_location("rekey_results", path)
    module = importlib.util.module_from_spec(tool)
    tool.loader.exec_module(module)
    line = lines(cells.read(HERE / "specs/flamby.toml", ["fedavg"]))[-1]
    older = line.replace(json.loads(line)["cell"], "0" * 16)
    assert older != line == module.rekeyed(older)
    assert results.Result.read(line).spec["name"] == "flamby"
