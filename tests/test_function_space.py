"""The claims of the paper on function space, eq. (17), and those its equations imply; in float64 with exact argmins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import oracle
from closeness import assert_same, dense, distance, flat, weights
from drawn import THREE, Flat, federation, memory, points, trajectory
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.engines import parties
from oracle import softmax


def test_fedlap_func_without_memory_is_fedlap():
    """Sec. 3.4: M_k = ∅ recovers FedLap, and so does τ = 0."""
    drawn = federation(4, overlap=True)
    _, plain = trajectory(fedlap.FedLap(delta=1.5, rho=0.3), drawn, 8)
    for options in ({"memory": 0}, {"tau": 0.0}):
        _, func = trajectory(fedlap.FedLapFunc(delta=1.5, rho=0.3, **options), drawn, 8)
        assert_same(weights(func), weights(plain), 1e-12)
        assert_same(flat(func[-1].clients.factor.v), flat(plain[-1].clients.factor.v), 1e-12)
    _, other = trajectory(fedlap.FedLapFunc(delta=1.5, rho=0.3, tau=1.0), drawn, 8)
    assert distance(weights(other), weights(plain)) > 1e-3


def test_fedlap_cov_func_without_memory_is_fedlap_cov():
    drawn = federation(4, overlap=True)
    _, cov = trajectory(fedlap.FedLapCov(delta=1.5, rho=fedlap.evenly), drawn, 8)
    _, both = trajectory(fedlap.FedLapCovFunc(delta=1.5, memory=0), drawn, 8)
    assert_same(weights(both), weights(cov), 1e-12)
    assert_same(dense(both[-1].clients.factor.V), dense(cov[-1].clients.factor.V), 1e-12)


def test_fedlap_cov_func_without_curvature_is_fedlap_func():
    """With v_k scaled by δ, as FedLap-Cov is to FedLap."""
    drawn, delta = federation(4, overlap=True), 1.5
    _, func = trajectory(fedlap.FedLapFunc(delta=delta, rho=0.3, tau=0.8), drawn, 8)
    _, both = trajectory(fedlap.FedLapCovFunc(delta=delta, rho=0.3, tau=0.8), drawn, 8, curvature=Flat())
    assert_same(weights(both), weights(func), 1e-12)
    assert_same(flat(both[-1].clients.factor.v), delta * flat(func[-1].clients.factor.v), 1e-12)
    assert_same(both[-1].clients.factor.y.targets, func[-1].clients.factor.y.targets, 1e-12)


@hyperparameters
class Beyond:
    """A server's argmin that ends at a given distance from its start."""

    def solve(self, function, start):
        return start + 1.0


@pytest.mark.parametrize("method", [fedlap.FedLapFunc, fedlap.FedLapCovFunc])
def test_the_servers_argmin_begins_a_step_of_fedlap_from_its_last_model(method):
    """What lies between w_g and the mean of the Gaussian factors is kept from round to round."""
    _, (_, *states) = trajectory(method(delta=1.5, rho=0.3), federation(4, overlap=True), 3, server_solver=Beyond())
    for steps, state in enumerate(states, start=1):
        v, S = state.clients.factor.v.sum(0), getattr(state.server, "S", None)
        mean = flat(v if S is None else S.solve(v))
        assert_same(flat(state.server.w), mean + steps, 1e-12)


def test_with_all_data_in_memory_the_first_round_is_exact():
    """In a generalised linear model ℓ(y, w) and ℓ(ŷ, w) differ by a linear function, held by v_k: t_k = exp(−ℓ_k)."""
    drawn, delta = federation(4, overlap=True), 1.5
    optimum, curvature = oracle.pooled(softmax, points(drawn), delta)
    for method in (fedlap.FedLapFunc, fedlap.FedLapCovFunc):
        _, states = trajectory(method(delta=delta, rho=1.0, memory=THREE.longest), drawn, 1)
        assert_same(flat(states[-1].server.w), optimum, 1e-11)
    # All curvature is in the memory points, and none in S_g: the precision to report has both.
    for covariance, wanted in (("full", curvature), ("diagonal", np.diag(np.diag(curvature)))):
        algorithm = fedlap.FedLapCovFunc(delta=delta, rho=1.0, memory=THREE.longest, covariance=covariance)
        _, states = trajectory(algorithm, drawn, 1)
        assert_same(dense(states[-1].server.S), delta * np.eye(THREE.weights), 1e-11)
        assert_same(dense(algorithm.precision(states[-1].server)), wanted, 1e-10)


def test_memory_is_one_random_point_a_class_and_stands_for_its_class():
    """App. E: τ_i = τ N_kc/M_kc, M_kc = 1, and no point of a class that the client does not have."""
    drawn = federation(3, sizes=[12, 5, 1])
    run, _ = trajectory(fedlap.FedLapFunc(delta=1.0), drawn, 0)
    for k, own in enumerate(memory(run)):
        inputs, labels = drawn.of(k)
        classes = [int(labels[np.flatnonzero((inputs == x).all(1))].item()) for x in own.x]
        assert classes == sorted(set(labels.tolist()))
        np.testing.assert_array_equal(own.mass, drawn.class_counts[k][classes])
        assert own.mass.sum() == drawn.sizes[k]
    two, _ = trajectory(fedlap.FedLapFunc(delta=1.0, memory=2), drawn, 0)
    for counts, own in zip(drawn.class_counts, memory(two), strict=True):
        used = np.minimum(counts, 2)
        np.testing.assert_allclose(np.sort(own.mass), np.sort(np.repeat(counts / np.maximum(used, 1), used)))


def test_own_memory_collapses_to_a_linear_function_of_the_outputs():
    """−ℓ(ŷ_k, w) + ℓ(ŷ_g, w) = (ŷ_k − ŷ_g)ᵀf: the log-sum-exp cancels, so line 1 is bounded below."""
    run, (state,) = trajectory(fedlap.FedLapFunc(delta=1.0), federation(3, sizes=[12, 5, 1]), 0)
    rng = np.random.default_rng(0)
    w, w_g, w_k = (state.server.w.like(jnp.asarray(rng.normal(size=THREE.weights))) for _ in range(3))
    shared, weight = memory(run), jnp.concatenate([own.mass for own in memory(run)])
    for k, own in enumerate(shared):
        client = client_of(run, state, k)
        labels = client.everyone(w_g, weight) - client.own(client.soften(w_k))
        others = sum(softmax.value(softmax.soften(shared[j], flat(w_g)), flat(w)) for j in range(3) if j != k)
        difference = softmax.soften(own, flat(w_k)).targets - softmax.soften(own, flat(w_g)).targets
        collapsed = np.sum(difference * softmax.outputs(own, flat(w)))
        np.testing.assert_allclose(client.distil(w, labels), others + collapsed, rtol=1e-12)
        before = sum(shared[j].n for j in range(k))
        np.testing.assert_array_equal(labels.mass[before : before + own.n], 0)


@pytest.mark.parametrize("curvature", [fedlap.GaussNewton(), fedlap.ExactHessian()], ids=repr)
def test_the_memorys_hessian_is_that_of_its_soft_labels(curvature):
    """H^{M_k} is the Hessian of Σ τ_i ℓ(ŷ_i, w) at w = w_k, where ŷ_i = f(x_i; w_k): of networks too."""
    network = fedlap.mlp(hidden=(3,), activation="tanh")
    method = fedlap.FedLapCovFunc(delta=1.0, covariance="full")
    run, (state,) = trajectory(method, federation(1), 0, model=network, curvature=curvature)
    client, w = client_of(run, state, 0), state.start

    @jax.jit
    def both():
        labels = client.own(client.soften(w))
        return client.memory_hessian(w, "full").matrix, jax.hessian(lambda x: client.distil(w.like(x), labels))(w.flat)

    assert_same(*both(), 1e-12)


def client_of(run, state, k):
    """Client k of a run, outside any compiled program."""
    shard = jax.tree.map(lambda leaf: leaf[k], run.setup.shards)
    return parties.client(run.setup, shard, parties.Moment(0, state.start, run.setup.key))[0]
