"""Every algorithm with hyper-parameters to be tested with, and short runs of them with Adam on minibatches."""

import dataclasses

import pytest

import fedlap
from drawn import federation
from fedlap.algorithms import ALGORITHMS
from fedlap.models.likelihood import Categorical
from fedlap.run.rounds import load_begun
from fedlap.run.simulation import histories

HYPER = {
    "fedavg": {},
    "fedprox": {"alpha": 0.3},
    "fedadmm": {"alpha": 0.3},
    "feddyn": {"alpha": 0.3, "weight_decay": 0.1},
    "scaffold": {"server_rate": 0.9},
    "fednova": {},
    "fedopt": {"learning_rate": 0.05, "tau": 0.02},
    "bcm": {"delta": 0.7},
    "pvi": {"delta": 0.7, "rho": 0.4, "samples": 3},
    "fedlap": {"delta": 0.7, "rho": 0.4},
    "fedlap_cov": {"delta": 0.7, "rho": 0.4},
    "fedlap_func": {"delta": 0.7, "rho": 0.4, "tau": 0.2},
    "fedlap_cov_func": {"delta": 0.7, "rho": 0.4, "tau": 0.2},
    "bayes_admm": {"delta": 0.7, "rho": 1.3, "gamma": 0.4, "tau": 0.6, "samples": 3},
    "fedep": {"delta": 0.7, "rho": 0.4, "eta": 0.8},
    "fedlap_kron": {"delta": 0.7, "rho": 0.4, "refresh": 2},
}

# Of somebody who has written one file, and has read nothing of fedlap but how to add an algorithm.
STRANGERS = {"stranger:Consensus": {"strength": 0.7, "pace": 0.4}, "stranger:Product": {"strength": 0.7, "pace": 0.4}}

# These begin where the network does; the others at the mean of their prior, zero.
PRIORLESS = ("fedavg", "fedprox", "fedadmm", "feddyn", "scaffold", "fednova", "fedopt")
NEEDED = {"optimiser": {"optimiser": "adamw", "learning_rate": 0.01}}  # what a solver has no default for

TRACES = []


@dataclasses.dataclass(frozen=True)
class Counting(Categorical):
    """Notes every time the loss is traced, which a compiled program does not."""

    def loss(self, outputs, labels):
        TRACES.append(outputs.shape)
        return super().loss(outputs, labels)


def settings_of(name):
    """The hyper-parameters to test a method with, the package's own or not."""
    return (HYPER | STRANGERS)[name]


def build(name, **hyper):
    if name not in HYPER | STRANGERS:
        pytest.fail(f"{name} is in ALGORITHMS and has no row in HYPER; add its hyper-parameters in {__file__}")
    return ALGORITHMS[name](**settings_of(name) | hyper)


def simulation(name, drawn=None, *, keep=False, hyper=(), **options):
    """A run with Adam on minibatches, the same program for all tests of one algorithm."""
    algorithm = build(name, **dict(hyper))
    drawn = federation(4, overlap=True) if drawn is None else drawn
    solver = fedlap.adam(epochs=1, batch=6, learning_rate=0.05, keep=keep)
    fixed = {"solver": solver, "server_solver": fedlap.descent(steps=6), "likelihood": Counting()}
    options = {"engine": "vectorised", "model": fedlap.logistic(), **fixed, **options}
    return fedlap.Simulation.of(algorithm, drawn, **options)


def after(run, rounds):
    state = run.init()
    for _ in range(rounds):
        state = run.step(state)
    return state


def finish(run, rounds, checkpoint=None, resume=False):
    """The last history of a run."""
    return list(histories(run, rounds, checkpoint, load_begun(run, checkpoint, resume)))[-1]


def eventful(**options):
    """A run with something of everything in its state: a factor, Adam's moments, a contribution."""
    return simulation("fedlap_cov", keep=True, **options)
