"""The categorical likelihood against its definition, and what one of one's own must have."""

from dataclasses import dataclass, make_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlap
import oracle
from drawn import PlainNewton, federation, memory, points
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.algorithms import ALGORITHMS
from fedlap.models.likelihood import categorical
from fedlap.solvers.problem import FullBatch
from methods import after, simulation


def outputs(n=5, classes=4, scale=2.0, seed=0):
    return scale * jax.random.normal(jax.random.key(seed), (n, classes))


def test_loss_is_minus_the_log_probability_of_the_label():
    f, y = outputs(), jnp.array([0, 1, 2, 3, 0])
    expected = -jnp.log(categorical.probabilities(f)[jnp.arange(5), y])
    np.testing.assert_allclose(categorical.loss(f, y), expected, rtol=1e-12)


def test_loss_and_its_gradient_survive_extreme_outputs():
    f, y = jnp.array([[1e4, -1e4, 0.0]]), jnp.array([1])
    gradient = jax.grad(lambda f: categorical.loss(f, y).sum())(f)
    np.testing.assert_allclose(categorical.loss(f, y), [2e4])
    np.testing.assert_allclose(gradient, [[1.0, -1.0, 0.0]])
    assert np.isfinite(categorical.factor(f)).all()


def test_soft_loss_is_the_cross_entropy_of_normalised_targets():
    f = outputs()
    targets = categorical.probabilities(outputs(seed=1))
    expected = -(targets * jax.nn.log_softmax(f)).sum(-1)
    np.testing.assert_allclose(categorical.soft_loss(f, jnp.ones(5), targets), expected, rtol=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_soft_loss_is_linear_in_mass_and_targets(a, b):
    f = outputs()
    first = jnp.arange(5.0), outputs(seed=1)
    second = jnp.ones(5), outputs(seed=2)
    together = [a * x + b * y for x, y in zip(first, second, strict=True)]
    expected = a * categorical.soft_loss(f, *first) + b * categorical.soft_loss(f, *second)
    np.testing.assert_allclose(categorical.soft_loss(f, *together), expected, atol=1e-10)


@pytest.mark.parametrize("scale", [0.0, 2.0, 50.0])
def test_factor_squares_to_the_hessian_of_the_loss(scale):
    f, y = outputs(scale=scale), jnp.zeros(5, int)
    hessian = jax.jit(jax.vmap(jax.hessian(lambda f, y: categorical.loss(f[None], y[None])[0])))(f, y)
    factor = jax.jit(categorical.factor)(f)
    assert factor.shape == (5, 4, 3)
    np.testing.assert_allclose(factor @ factor.mT, hessian, atol=1e-14)


def test_sampled_factor_is_unbiased():
    # The entries of FFᵀ are means of M draws that lie in [−1, 1]; five standard errors are below 5/√M.
    f, samples = outputs(n=3), 40_000
    factor = categorical.sampled_factor(f, jax.random.key(7), samples)
    exact = categorical.factor(f)
    assert factor.shape == (3, 4, samples)
    np.testing.assert_allclose(factor @ factor.mT, exact @ exact.mT, atol=5 / samples**0.5)


# A likelihood of one's own --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """The least that a likelihood may have."""

    def loss(self, outputs, labels):
        return categorical.loss(outputs, labels)

    def probabilities(self, outputs):
        return categorical.probabilities(outputs)


@dataclass(frozen=True)
class Curved(Scored):
    """The same with a curvature."""

    def factor(self, outputs):
        return categorical.factor(outputs)


def start(name, likelihood, **options):
    return simulation(name, likelihood=likelihood, **options)


def test_a_likelihood_needs_only_what_its_method_asks_for():
    for name in ("fedavg", "fedprox", "fedadmm", "feddyn", "fedlap", "pvi"):
        start(name, Scored())
    for name in ("bcm", "fedlap_cov"):
        start(name, Curved())
        start(name, Scored(), curvature=fedlap.ExactHessian())  # which is made of the loss


@pytest.mark.parametrize(
    ("name", "likelihood", "options", "lacks"),
    [
        ("bcm", Scored(), {}, r"Scored has no factor\(outputs\), and BCM needs it: GaussNewton"),
        ("fedlap_cov", Scored(), {}, r"Scored has no factor\(outputs\), and FedLapCov needs it"),
        (
            "fedlap_func",
            Curved(),
            {},
            r"Curved has no soft_loss\(outputs, mass, targets\), and FedLapFunc needs it",
        ),
        ("fedlap_cov_func", Curved(), {}, r"Curved has no soft_loss\(outputs, mass, targets\), and FedLapCovFunc"),
        (
            "fedlap_cov",
            Curved(),
            {"curvature": fedlap.GaussNewton(samples=2)},
            r"has no sampled_factor\(outputs, key, samples\), and FedLapCov needs it",
        ),
        ("fedavg", object(), {}, r"object has no loss\(outputs, labels\), and every method needs it"),
        ("fedavg", Scored, {}, "likelihood is the class Scored; expected an instance"),
    ],
)
def test_what_a_likelihood_lacks_is_said_before_the_first_round(name, likelihood, options, lacks):
    with pytest.raises(fedlap.ConfigError, match=lacks):
        start(name, likelihood, **options)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("loss", lambda self, outputs, labels: outputs.sum(), r"the shape \[\]; expected \[7\]"),
        ("loss", lambda self, outputs, labels: (outputs, labels), r"is no array; expected \[7\]"),
        ("loss", lambda self, outputs, labels: outputs, r"the shape \[7, 3\]; expected \[7\]"),
        ("probabilities", lambda self, outputs: outputs[:, 0], r"the shape \[7\]; expected \[7, 3\]"),
        ("soft_loss", lambda self, outputs, mass, targets: mass[:, None], r"\[7, 1\]; expected \[7\]"),
        ("factor", lambda self, outputs: outputs, r"the shape \[7, 3\]; expected \[7, 3, 3\]"),
        ("sampled_factor", lambda self, outputs, key, samples: categorical.factor(outputs), r"expected \[7, 3, 3\]"),
    ],
)
def test_what_a_likelihood_gives_in_another_shape_is_said_before_the_first_round(name, given, said):
    odd = dataclass(frozen=True)(type("Odd", (Scored,), {name: given}))()
    with pytest.raises(fedlap.ConfigError, match=rf"likelihood Odd: {name}\(.*of 7 examples and 3 classes.*{said}"):
        start("fedlap", odd)


def test_a_likelihood_is_compared_by_value():
    unfrozen = make_dataclass("Unfrozen", [], namespace={"loss": Scored.loss, "probabilities": Scored.probabilities})()
    with pytest.raises(fedlap.ConfigError, match=r"Unfrozen has no hash.*@dataclass\(frozen=True\)"):
        start("fedavg", unfrozen)


@dataclass(frozen=True)
class Smoothed(fedlap.Categorical):
    """As on the page on usage: some of each label is shared by all classes."""

    shared: float = 0.1

    def loss(self, outputs, labels):
        classes = outputs.shape[-1]
        hot = jax.nn.one_hot(labels, classes, dtype=outputs.dtype)
        return self.soft_loss(outputs, 1, (1 - self.shared) * hot + self.shared / classes)


@hyperparameters
class Slope(FullBatch):
    """One step down the slope."""

    def solve(self, function, start):
        return jax.tree.map(lambda w, g: w - 0.1 * g, start, jax.grad(function)(start))


OWN = [
    ("fedavg", {}, Slope()),
    ("fedlap_cov", {"delta": 0.7, "rho": 0.4, "covariance": "diagonal"}, PlainNewton()),
    ("fedlap_func", {"delta": 0.7, "rho": 0.4, "tau": 0.2}, PlainNewton()),
]


@pytest.mark.parametrize(("name", "hyper", "solver"), OWN, ids=[name for name, _, _ in OWN])
def test_a_likelihood_of_one_s_own_trains_as_the_oracle_says(name, hyper, solver):
    data = federation(1, overlap=True)
    smooth = lambda each: each._replace(targets=0.9 * each.targets + 0.1 / data.classes)
    clients = list(map(smooth, points(data)))
    algorithm = ALGORITHMS[name](**hyper)
    options = {"solver": solver, "server_solver": solver, "likelihood": Smoothed(), "engine": "vectorised"}
    run = fedlap.Simulation.of(algorithm, data, fedlap.logistic(), **options)
    if name == "fedavg":
        w = np.zeros(6)
        for _ in range(3):
            w = w - 0.1 * sum(oracle.softmax.gradient(each, w) for each in clients) / sum(each.n for each in clients)
    else:
        extra = {"memory": memory(run)} if algorithm.memory else {}
        *_, last = oracle.ALGORITHMS[name](oracle.softmax, clients, [[0, 1, 2]] * 3, **hyper, **extra)
        w = last.w
    np.testing.assert_allclose(np.asarray(after(run, 3).server.w), w, rtol=0, atol=1e-12)
