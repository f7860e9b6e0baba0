"""The predictive distribution: exact algebra, dense Jacobians, quadrature, and what is refused."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedlap
import predictive_oracle as oracle
from drawn import FOUR, Squared, federation
from fedlap.algebra.precision import Diagonal, Full, Isotropic, Shifted
from fedlap.algebra.vector import Vector
from fedlap.engines.parties import Task
from fedlap.engines.predictive import Averaging, Posterior, Predictive, entropy
from fedlap.errors import ConfigError, DataError
from fedlap.models import jacobian
from fedlap.models.curvature import GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.model import as_model
from fedlap.models.network import Activation, Convolution, Dense, Flatten, MaxPool, Network, mlp

CLASSES, ROWS = 3, 5
NEW = np.random.default_rng(1).normal(size=(ROWS, FOUR.features))


@pytest.fixture(scope="module")
def diagonal():
    drawn = federation(4, FOUR, overlap=True)
    algorithm = fedlap.FedLapCov(delta=1.0)
    return fedlap.simulate(algorithm, drawn, fedlap.logistic(bias=True), solver=fedlap.newton(), rounds=2)


@pytest.fixture(scope="module", params=["diagonal", "full"])
def history(request, diagonal):
    if request.param == "diagonal":
        return diagonal
    half = np.random.default_rng(2).normal(size=(8, 8))
    return with_precision(diagonal, Shifted(Full(jnp.asarray(half @ half.T)), 1.5))


def with_precision(history, precision):
    return dataclasses.replace(history, fit=dataclasses.replace(history.fit, precision=precision))


def exact(history):
    """Mean and covariance of the outputs at NEW, by the oracle."""
    J = np.stack([oracle.logistic_jacobian(x, 2) for x in NEW])
    return J @ history.final.w, np.stack([oracle.covariance(each, history.precision) for each in J])


# The logistic model: exact algebra ----------------------------------------------------------------------------------


def test_the_outputs_of_the_logistic_model_are_exactly_gaussian(history):
    found, (mean, covariance) = history.predictive(NEW), exact(history)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-10)
    centred = np.eye(2) - 1 / 2
    np.testing.assert_allclose(found.variance, [np.trace(centred @ each @ centred) for each in covariance], rtol=1e-9)


def test_two_classes_are_one_logit_with_the_variance_of_the_difference(history):
    mean, covariance = exact(history)
    margin, variance = mean @ [-1, 1], np.einsum("c,ncd,d->n", [-1, 1], covariance, [-1, 1])
    probit = 1 / (1 + np.exp(-margin / np.sqrt(1 + np.pi / 8 * variance)))
    np.testing.assert_allclose(history.predict(NEW, posterior=True)[:, 1], probit, rtol=1e-10)
    wanted = np.stack([oracle.average(*each) for each in zip(mean, covariance, strict=True)])
    assert np.abs(history.predict(NEW, posterior=True) - wanted).max() < 0.005
    drawn = history.predict(NEW, posterior=True, link="samples", samples=20_000, seed=3)
    assert np.abs(drawn - wanted).max() < 0.003  # the draws are mirrored: less than 4 · 0.2 / √20,000
    np.testing.assert_allclose(drawn.sum(1), 1)


def test_an_interval_has_the_quantiles_of_the_logit(history):
    found = history.predict(NEW, posterior=True, interval=0.8)
    np.testing.assert_array_equal(found.probability, history.predict(NEW, posterior=True))
    mean, covariance = exact(history)
    margin, deviation = mean @ [-1, 1], np.sqrt(np.einsum("c,ncd,d->n", [-1, 1], covariance, [-1, 1]))
    for bound, z in ((found.lower, -1.2815515655446004), (found.upper, 1.2815515655446004)):
        np.testing.assert_allclose(bound[:, 1], 1 / (1 + np.exp(-margin - z * deviation)), rtol=1e-10)
    np.testing.assert_allclose(found.lower[:, 0], 1 - found.upper[:, 1], rtol=1e-10)


def test_drawn_functions_have_the_covariance_between_rows(history):
    draws = history.sample(NEW, samples=1000, seed=1)
    assert draws.shape == (1000, ROWS, 2)
    margins = np.log(draws[..., 1] / draws[..., 0])
    J = np.stack([oracle.logistic_jacobian(x, 2) for x in NEW])
    J = J[:, 1] - J[:, 0]
    wanted = oracle.covariance(J, history.precision)
    deviations = np.sqrt(np.diag(wanted))
    assert np.abs((margins.mean(0) - J @ history.final.w) / deviations).max() < 4 / np.sqrt(1000)
    assert np.abs((np.cov(margins.T) - wanted) / np.outer(deviations, deviations)).max() < 6 / np.sqrt(1000)
    np.testing.assert_array_equal(history.sample(NEW, samples=2, seed=5), history.sample(NEW, samples=2, seed=5))
    assert not np.array_equal(*history.sample(NEW, samples=2, seed=5))


def test_a_history_that_was_saved_predicts_the_same(history, tmp_path):
    history.save(tmp_path / "run")
    loaded = fedlap.load(tmp_path / "run")
    asked = {"posterior": True, "link": "samples", "samples": 50, "interval": 0.9}
    for found, wanted in zip(loaded.predict(NEW, **asked), history.predict(NEW, **asked), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_row_is_predicted_alike_whoever_stands_beside_it(history):
    for link in ("probit", "samples"):
        alone = history.predict(NEW[2:3], posterior=True, link=link)
        np.testing.assert_allclose(history.predict(NEW, posterior=True, link=link)[2:3], alone, rtol=1e-12)
    assert history.predict(NEW[:0], posterior=True).shape == (0, 2)
    assert history.predict(NEW[:0], posterior=True, link="samples", interval=0.9).lower.shape == (0, 2)


def test_entropy_is_a_score_of_doubt(history):
    p = history.predict(NEW, posterior=True)
    np.testing.assert_allclose(history.uncertainty(NEW, posterior=True), -(p * np.log(p)).sum(1), rtol=1e-12)
    np.testing.assert_allclose(history.uncertainty(NEW), entropy(history.predict(NEW)))
    np.testing.assert_array_equal(entropy(np.array([[1.0, 0.0]])), 0)


def test_any_labelled_rows_are_scored_by_point_or_posterior(history):
    labels = np.array([0, 1, 1, 0, 1])
    for posterior in (False, True):
        found, p = history.evaluate(NEW, labels, posterior=posterior), history.predict(NEW, posterior=posterior)
        assert found.accuracy == (p.argmax(1) == labels).mean()
        assert found.nll == pytest.approx(-np.log(p[np.arange(ROWS), labels]).mean(), rel=1e-12)
        assert found.brier == pytest.approx(2 * ((p[:, 1] - labels) ** 2).mean(), rel=1e-12)
        above = p[labels == 1, 1][:, None] - p[labels == 0, 1]
        assert found.auc == pytest.approx((above > 0).mean())
        named = dataclasses.replace(history, fit=dataclasses.replace(history.fit, classes=("no", "yes")))
        assert named.evaluate(NEW, np.array(["no", "yes"])[labels], posterior=posterior) == found
    with pytest.raises(DataError, match="labels, row 2: label is 'maybe'; expected one of 'no', 'yes'"):
        named.evaluate(NEW, ["no", "yes", "maybe", "no", "no"])
    with pytest.raises(DataError, match="3 labels for 5 rows; expected one a row"):
        history.evaluate(NEW, [0, 1, 0])
    with pytest.raises(ConfigError, match="link is of the posterior"):
        history.evaluate(NEW, labels, link="probit")


# Networks: dense Jacobians ------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.tanh(nn.Dense(4)(x)))


CNN = Network(
    (
        *(Convolution(3, 3, padding=1), Activation("relu"), MaxPool(), Convolution(2, 2, bias=False)),
        *(Activation("tanh"), Flatten(), Dense(bias=False)),
    )
)
MODELS = {
    "mlp": (mlp((6, 5), "tanh"), (2, 3)),
    "convolutional": (CNN, (6, 7, 2)),
    "flax": (as_model(Perceptron()), (4,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_networks_have_the_covariance_of_their_dense_jacobians(name, monkeypatch):
    model, shape = MODELS[name]
    inputs = jax.random.normal(jax.random.key(1), (ROWS, *shape))
    flat, unravel = ravel_pytree(jax.jit(model.init, static_argnums=2)(jax.random.key(2), inputs, CLASSES))
    flat += 0.3 * jax.random.normal(jax.random.key(3), flat.shape)
    w, P, rng = Vector(unravel(flat)), len(flat), np.random.default_rng(0)
    apply = lambda flat: model.apply(unravel(flat), inputs)
    J, mean = jax.tree.map(np.asarray, jax.jit(lambda flat: (jax.jacrev(apply)(flat), apply(flat)))(flat))
    d, half = rng.uniform(0.5, 5, P), rng.normal(size=(P, P // 2))
    structures = {
        "diagonal": (Diagonal(w.like(jnp.asarray(d))), d),
        "isotropic": (Isotropic(3.0), 3.0),
        "full": (Full(jnp.asarray(half @ half.T + np.eye(P))), half @ half.T + np.eye(P)),
        "shifted": (Shifted(Full(jnp.asarray(half @ half.T)), 0.7), half @ half.T + 0.7 * np.eye(P)),
    }
    for chunk in ("layer_chunk", "example_chunk"):  # of which the last is not full
        monkeypatch.setattr(jacobian, chunk, lambda *_: 2)
    for structure in list(structures)[: 2 if name == "convolutional" else 4]:
        S, dense = structures[structure]
        found = Posterior.of(Task(model, categorical, GaussNewton()), w, S).predictive(inputs)
        wanted = np.stack([oracle.covariance(each, dense) for each in J])
        np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
        np.testing.assert_allclose(found.covariance, wanted, rtol=1e-8, atol=1e-12, err_msg=structure)


def test_chunks_are_as_large_as_their_numbers_allow():
    for model, shape in (MODELS["mlp"], MODELS["convolutional"]):
        example = jax.ShapeDtypeStruct((1, *shape), float)
        params = jax.eval_shape(lambda key, model=model, x=example: model.init(key, x, CLASSES), jax.random.key(0))
        assert jacobian.layer_chunk(model, params, example) > 500
    cnn, images = fedlap.zenke_cnn(), jax.ShapeDtypeStruct((1, 32, 32, 3), float)
    params = jax.eval_shape(lambda key: cnn.init(key, images, 10), jax.random.key(0))
    assert jacobian.has_layers(cnn) and not jacobian.has_layers(MODELS["flax"][0])
    assert 1 <= jacobian.layer_chunk(cnn, params, images) < 20
    assert jacobian.example_chunk(cnn, params, images) == 1


@dataclasses.dataclass(frozen=True)
class Scale:
    """A layer of one's own, which tells the diagonal of a curvature and no more."""

    def init(self, key, inputs, classes):
        return {"scale": jnp.ones(inputs.shape[1:])}

    def apply(self, params, inputs, key=None):
        return inputs * params["scale"]

    def squared_gradients(self, inputs, cotangents, weights):
        raise NotImplementedError


def test_a_layer_that_cannot_tell_is_not_left_out():
    model, inputs = Network((Scale(), Dense(CLASSES, bias=False))), jnp.asarray(NEW)
    w = Vector(model.init(jax.random.key(2), inputs, CLASSES))
    assert not jacobian.has_layers(model)
    flat, unravel = ravel_pytree(w.tree)
    J = np.asarray(jax.jit(jax.jacrev(lambda flat: model.apply(unravel(flat), inputs)))(flat))
    found = Posterior.of(Task(model, categorical, GaussNewton()), w, Isotropic(2.0)).predictive(inputs).covariance
    np.testing.assert_allclose(found, [oracle.covariance(each, 2.0) for each in J], rtol=1e-10)


# Links: quadrature --------------------------------------------------------------------------------------------------


def test_the_probit_of_two_classes_is_as_near_as_is_said():
    """Within 0.02 of the integral for variances up to 100 and margins up to 12, within 0.005 for variances up to 1."""
    margins, variances = np.meshgrid(np.linspace(0, 12, 25), [0.0, 0.1, 1.0, 4.0, 25.0, 100.0])
    mean = np.stack([np.zeros(margins.size), margins.ravel()], 1)
    covariance = variances.ravel()[:, None, None] / 2 * np.eye(2)
    found = Predictive(categorical, mean, covariance).probabilities(Averaging())
    wanted = np.stack([oracle.average(*each, nodes=400) for each in zip(mean, covariance, strict=True)])
    worst = np.abs(found - wanted).max(1).reshape(margins.shape).max(1)
    assert worst[0] < 1e-12 and worst[2] < 0.005 and worst.max() < 0.02


@pytest.mark.parametrize(
    ("deviation", "mean_error", "most"), [(0.3, 0.002, 0.01), (1.0, 0.01, 0.06), (2.0, 0.025, 0.12)]
)
def test_the_probit_of_three_classes_is_nearer_than_that_of_each_output_alone(deviation, mean_error, most):
    rng = np.random.default_rng(0)
    mean, root = 2 * rng.normal(size=(40, 3)), deviation / np.sqrt(3) * rng.normal(size=(40, 3, 3))
    outputs = Predictive(categorical, mean, root @ root.swapaxes(1, 2))
    wanted = np.stack([oracle.average(*each) for each in zip(mean, outputs.covariance, strict=True)])
    error = np.abs(outputs.probabilities(Averaging()) - wanted)
    alone = oracle.softmax(mean / np.sqrt(1 + np.pi / 8 * np.diagonal(outputs.covariance, axis1=1, axis2=2)))
    assert error.max() < most and error.mean() < min(mean_error, np.abs(alone - wanted).mean() / 2)
    assert np.abs(outputs.probabilities(Averaging("samples", 20_000)) - wanted).max() < 0.012  # 4 · 0.4 / √20,000


def test_intervals_of_three_classes_hold_their_share_of_draws():
    rng = np.random.default_rng(0)
    mean, root = 2 * rng.normal(size=(40, 3)), rng.normal(size=(40, 3, 3))
    outputs = Predictive(categorical, mean, root @ root.swapaxes(1, 2))
    lower, upper = outputs.interval(Averaging(samples=4000, interval=0.9))
    others = outputs.draws(Averaging("samples", 4000, seed=1))
    assert np.abs(((others >= lower) & (others <= upper)).mean(0) - 0.9).max() < 0.03  # 6 · 0.3 / √4000, of two draws


def test_what_softmax_does_not_see_makes_no_prediction_unsure():
    mean, covariance = np.array([[2.0, 0.0, -1.0]]), 0.3 * np.eye(3)[None]
    found = Predictive(categorical, mean, covariance)
    shifted = Predictive(categorical, mean + 5, covariance + 1e6)
    np.testing.assert_allclose(shifted.probabilities(Averaging()), found.probabilities(Averaging()), rtol=1e-8)
    np.testing.assert_allclose(shifted.variance, found.variance, rtol=1e-8)


def test_single_precision_keeps_the_differences():
    """δ is below the rounding of V, and the constant that softmax does not see has a variance of a million."""
    x = np.random.default_rng(0).normal(size=(200, 2))
    V = np.kron([[1, -1], [-1, 1]], x.T @ x).astype(np.float32)
    w = Vector((jnp.zeros((2, 2), jnp.float32),))
    model = fedlap.Model(lambda key, inputs: (jnp.zeros((2, 2)),), lambda params, inputs: inputs @ params[0].T)
    S = Shifted(Full(jnp.asarray(V)), jnp.float32(1e-6))
    found = Posterior.of(Task(model, categorical, GaussNewton()), w, S).predictive(jnp.asarray(x[:3], jnp.float32))
    wanted = np.stack([each @ np.linalg.inv(2 * x.T @ x) @ each * 2 for each in x[:3]])
    np.testing.assert_allclose(2 * found.variance, wanted, rtol=1e-3)


def test_on_a_huge_scale_predictions_are_right_and_outputs_that_lost_their_differences_are_refused():
    """δ is below the rounding of V in double precision too; of differences the posterior is that of other units."""
    x, scale = np.random.default_rng(0).normal(size=(200, 2)), 1e12
    model = fedlap.Model(lambda key, inputs: (jnp.zeros((2, 2)),), lambda params, inputs: inputs @ params[0].T)

    def posterior(x):
        V = np.kron([[1, -1], [-1, 1]], x.T @ x)
        return Posterior.of(
            Task(model, categorical, GaussNewton()),
            Vector((jnp.zeros((2, 2)) + jnp.array([[1.0], [0.0]]) / np.abs(x).max(),)),
            Shifted(Full(jnp.asarray(V)), 1.0),
        )

    wanted, found = (posterior(rows).predict(rows[:5], Averaging(interval=0.9)) for rows in (x, scale * x))
    for plain, scaled in zip(wanted, found, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=2e-3)  # as much as the prior, which is none of V, says of x
    with pytest.raises(DataError, match="in common, in which their differences are lost; expected inputs on a smaller"):
        posterior(scale * x).predictive(scale * x[:5])


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"posterior": "no"}, "posterior is 'no'; expected True or False"),
        ({"link": "samples"}, "link is of the posterior, and the point estimate has none; use posterior=True"),
        ({"interval": 0.9}, "interval is of the posterior"),
        ({"samples": 5}, "samples is of the posterior"),
        ({"posterior": True, "link": "logit"}, "unknown link 'logit' .choices: probit, samples"),
        ({"posterior": True, "samples": 5}, 'samples is of draws, and there are none with link="probit"'),
        ({"posterior": True, "seed": 5, "interval": 0.9}, 'seed is of draws.*use link="samples"'),
        ({"posterior": True, "interval": 90}, "interval is 90; expected a share between 0 and 1, such as 0.9"),
        ({"posterior": True, "interval": True}, "interval is True; expected a share"),
        ({"posterior": True, "link": "samples", "samples": 0}, "samples is 0; expected a whole number, 1 or above"),
        ({"posterior": True, "link": "samples", "seed": -1}, "seed is -1; expected a whole number from 0"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(history, asked, message):
    with pytest.raises(ConfigError, match=message):
        history.predict(NEW, **asked)


def test_an_algorithm_without_precision_has_no_posterior(diagonal):
    history = with_precision(diagonal, fedlap.FedAvg().precision_ahead(fedlap.Point(diagonal.fit.w)))
    for ask in (lambda: history.predict(NEW, posterior=True), lambda: history.sample(NEW)):
        with pytest.raises(ConfigError, match=r"no precision.*Those that have one: BCM, PVI, FedLapCov, FedLapCovFunc"):
            ask()


def test_a_precision_that_is_not_positive_is_an_error_and_no_nan():
    w = Vector((jnp.zeros((2, 2)),))
    for S, message in (
        (np.array([1.0, 2.0, -0.5, 1.0]), "it is -0.5 for weight 2 of 4"),
        (np.array([1.0, np.nan, 1.0, 1.0]), "it is nan for weight 1 of 4"),
        (np.diag([1.0, 2.0, -0.5, 1.0]), "its least eigenvalue is -0.5"),
        (1e12 * np.array([[1.0, 2.0], [2.0, 1.0]]).repeat(2, 0).repeat(2, 1), "its least eigenvalue is -2e"),
        (np.zeros((4, 4)), "its least eigenvalue is 0"),
        (np.full((4, 4), np.inf), "not all of its numbers are finite"),
        (np.array(0.0), "it is 0 for weight 0 of 4"),
    ):
        with pytest.raises(ConfigError, match=f"the precision is not positive, so there is no posterior: {message}"):
            Posterior.of(Task(mlp(), categorical, GaussNewton()), w, S)


def test_outputs_that_are_not_finite_are_an_error(history):
    lost = dataclasses.replace(history, fit=dataclasses.replace(history.fit, w=history.fit.w * np.inf))
    with pytest.raises(DataError, match="outputs are not finite"):
        lost.predict(NEW, posterior=True)


def test_the_probit_is_of_softmax_and_draws_are_of_any_likelihood():
    mean, covariance = np.array([[0.2, 0.7]]), 0.01 * np.eye(2)[None]
    found = Predictive(Squared(), mean, covariance)
    with pytest.raises(ConfigError, match='link="probit" is of softmax, and the likelihood is Squared; use link="sam'):
        found.probabilities(Averaging())
    np.testing.assert_allclose(found.probabilities(Averaging("samples", 100)), mean)  # mirrored draws
    lower, upper = found.interval(Averaging("samples", 4000, interval=0.9))
    np.testing.assert_allclose(upper - lower, 2 * 0.1645, rtol=0.1)
