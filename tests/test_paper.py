"""The claims of the paper, one test each, and those its equations imply; in float64 with exact argmins.

Equations are numbered as in the paper: (2) ADMM, (3) BCM, (5) and (6) PVI, (9) FedLap, (12) and (14) FedLap-Cov, (17)
FedLap-Func, (18) FedLap rewritten, (21) FedLap-Cov as implemented.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import oracle
from closeness import EXACT, assert_same, dense, distance, flat, weights
from drawn import FOUR, GUARDED, THREE, Flat, SigmaPoints, Squared, federation, points, trajectory
from fedlap.algebra import quadratic
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.algebra.precision import Diagonal, Full
from fedlap.algebra.vector import Vector
from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import DampedFactor, Gaussian, Laplace
from fedlap.engines.round import server_round
from fedlap.models.network import Dense, Flatten, Network
from fedlap.solvers.problem import FullBatch
from methods import PRIORLESS
from oracle import energy, line, softmax, square, squared


def local(loss, data, state, k, *, delta=None):
    """w_k of FedLap, eq. (9), or of FedLap-Cov, eq. (14), from the state before the round: an argmin in NumPy."""
    w_g, v = flat(state.server.w), flat(state.clients.factor.v)[k]
    if delta is not None:
        return oracle.argmin(energy(loss, data).plus(line(delta * v), square(delta, around=w_g)), w_g)
    S_g, V = dense(state.server.S), dense(state.clients.factor.V)[k]
    return oracle.argmin(energy(loss, data).plus(line(v), square(-V), square(S_g, around=w_g)), w_g)


# Where the methods go.


def test_fedlap_targets_the_regularised_optimum():
    """Eq. (1) with R = ½‖w‖²: w_g → argmin Σℓ_k + ½δ‖w‖², and δ v_k → −∇ℓ_k."""
    drawn, delta = federation(1), 5.0
    _, states = trajectory(fedlap.FedLap(delta=delta, rho=1 / 3), drawn, 250)
    optimum, _ = oracle.pooled(softmax, points(drawn), delta)
    assert_same(flat(states[-1].server.w), optimum)
    for data, v in zip(points(drawn), flat(states[-1].clients.factor.v), strict=True):
        assert_same(delta * v, -softmax.gradient(data, optimum))


def test_the_admm_dual_is_minus_the_gradient():
    """Sec. 2: upon convergence w_k = w_g and v_k = −∇ℓ̄_k(w_g), so Σ∇ℓ̄_k = 0: no weight decay (App. D.2)."""
    drawn = federation(2, overlap=True)
    _, states = trajectory(fedlap.FedADMM(alpha=0.3), drawn, 300)
    w_g = flat(states[-1].server.w)
    gradients = np.stack([softmax.gradient(data, w_g) / data.n for data in points(drawn)])
    assert_same(flat(states[-1].clients.factor.v), -gradients)
    assert np.linalg.norm(gradients.sum(0)) < EXACT * np.linalg.norm(gradients)
    assert np.linalg.norm(gradients[0]) > 1e-2  # the clients do pull


def test_fedadmm_targets_the_sum_of_mean_losses():
    """Eq. (2) weighs clients alike, whatever their sizes: argmin Σ ℓ̄_k, which is not the pooled argmin Σ ℓ_k."""
    drawn = federation(2, sizes=[12, 6, 6], overlap=True)
    _, states = trajectory(fedlap.FedADMM(alpha=0.3), drawn, 300)
    start = np.zeros(THREE.weights)
    of_means, of_sums = (
        oracle.argmin(square(0.0).plus(*(energy(softmax, data, scale(data)) for data in points(drawn))), start)
        for scale in (lambda data: 1 / data.n, lambda data: 1.0)
    )
    assert_same(flat(states[-1].server.w), of_means)
    assert distance(of_sums, of_means) > 0.05
    # FedDyn's steps α_k ∝ 1/N_k weigh them by size.
    _, states = trajectory(fedlap.FedDyn(alpha=0.3), drawn, 300)
    assert_same(flat(states[-1].server.w), of_sums)


def test_feddyn_targets_the_pooled_loss_and_its_weight_decay():
    """α_k ∝ 1/N_k makes Σ v_k/α_k = 0 the stationarity of Σℓ_k + ½Nλ‖w‖², whatever the clients' sizes."""
    drawn, decay = federation(2, sizes=[12, 7, 8], overlap=True), 0.05
    _, states = trajectory(fedlap.FedDyn(alpha=0.3, weight_decay=decay), drawn, 300)
    optimum, _ = oracle.pooled(softmax, points(drawn), decay * drawn.sizes.sum())
    assert_same(flat(states[-1].server.w), optimum)


def test_fedlap_cov_reaches_the_pooled_optimum_and_its_hessian_in_ten_rounds():
    """Full covariance, exact Hessians, ρ = 1: at Newton's pace to Laplace's posterior of all data."""
    drawn, delta = federation(1), 1.0
    optimum, hessian = oracle.pooled(softmax, points(drawn), delta)
    method = fedlap.FedLapCov(delta=delta, rho=1.0, covariance="full")
    _, states = trajectory(method, drawn, 10, curvature=fedlap.ExactHessian())
    assert_same(flat(states[-1].server.w), optimum, 1e-9)
    assert_same(dense(states[-1].server.S), hessian)
    errors = [distance(w, optimum) for w in weights(states[1:6])]
    assert errors[0] > 1e-3 > 1e-5 > errors[2]  # it was some way to go, and went fast


STATIONARY = {
    "fedlap": fedlap.FedLap(delta=3.0, rho=0.3),
    "fedlap_cov": fedlap.FedLapCov(delta=3.0, rho=fedlap.evenly),
    "fedlap_func": fedlap.FedLapFunc(delta=3.0, rho=0.3, tau=0.1),
    "fedlap_cov_func": fedlap.FedLapCovFunc(delta=3.0, rho=fedlap.evenly, tau=0.1),
}


@pytest.mark.parametrize("name", STATIONARY)
def test_all_clients_agree_at_a_stationary_point(name):
    """w_k = w_g: one more round moves no factor, whatever the factor is made of; and w_g is the regularised optimum."""
    drawn = federation(4, overlap=True)
    run, states = trajectory(STATIONARY[name], drawn, 250)
    optimum, _ = oracle.pooled(softmax, points(drawn), 3.0)
    before, after = states[-1], run.step(states[-1])
    assert_same(flat(after.server.w), optimum)
    for old, new in zip(jax.tree.leaves(before.clients.factor), jax.tree.leaves(after.clients.factor), strict=True):
        assert_same(new, old)
    moved = flat(states[2].clients.factor.v) - flat(states[1].clients.factor.v)
    assert np.linalg.norm(moved) > 1e-3


def test_averages_without_duals_do_not_agree():
    """Sec. 2: FedAvg and FedProx do not ensure w_k = w_g at convergence."""
    drawn = federation(2, overlap=True)
    for method in (fedlap.FedAvg(), fedlap.FedProx(alpha=0.3)):
        _, states = trajectory(method, drawn, 300, **GUARDED)
        assert distance(flat(states[-1].server.w), flat(states[-2].server.w)) < EXACT
        spread = flat(states[-1].clients.contribution.w) - flat(states[-1].server.w)
        assert np.linalg.norm(spread, axis=1).min() > 1e-2


# How the methods are related.


def test_fedlap_is_admm_rewritten():
    """App. A, eq. (18): divided by N_k and with ṽ_k = δv_k/N_k it is ADMM with step δ/N_k in lines 1 and 2."""
    drawn, delta, rho, rounds = federation(5), 2.0, 0.3, 10
    _, states = trajectory(fedlap.FedLap(delta=delta, rho=rho), drawn, rounds)
    clients = points(drawn)
    w_g, v = np.zeros(THREE.weights), np.zeros((3, THREE.weights))
    for state in states[1:]:
        for k, data in enumerate(clients):
            step = delta / data.n
            w = oracle.argmin(energy(softmax, data, 1 / data.n).plus(line(v[k]), square(step, around=w_g)), w_g)
            v[k] += rho * step * (w - w_g)
        w_g = sum(v[k] / (delta / data.n) for k, data in enumerate(clients))
        assert_same(flat(state.server.w), w_g, 1e-12)
        assert_same(delta * flat(state.clients.factor.v) / drawn.sizes[:, None], v, 1e-12)


def test_fedlap_cov_without_curvature_is_fedlap():
    """H ≡ 0 leaves S_g = δI and V_k = 0, and v_k of FedLap-Cov is δ v_k of FedLap."""
    drawn, delta = federation(6), 2.0
    _, plain = trajectory(fedlap.FedLap(delta=delta, rho=0.3), drawn, 8)
    _, flattened = trajectory(fedlap.FedLapCov(delta=delta, rho=0.3), drawn, 8, curvature=Flat())
    for a, b in zip(plain, flattened, strict=True):
        assert np.linalg.norm(flat(a.server.w) - flat(b.server.w)) < 1e-12
        assert np.linalg.norm(delta * flat(a.clients.factor.v) - flat(b.clients.factor.v)) < 1e-12
        np.testing.assert_array_equal(flat(b.clients.factor.V), 0)
        np.testing.assert_array_equal(flat(b.server.S), delta)
    assert np.linalg.norm(flat(plain[-1].server.w)) > 0.1


def test_fedprox_is_admm_without_the_dual():
    """Sec. 2: v_k fixed to zero in eq. (2). For equal clients the average weighted by N_k is the plain one."""
    drawn, alpha = federation(7, sizes=[12, 12, 12]), 0.5
    _, states = trajectory(fedlap.FedProx(alpha=alpha), drawn, 6)
    w_g = np.zeros(THREE.weights)
    for state in states[1:]:
        w_k = [
            oracle.argmin(energy(softmax, data, 1 / data.n).plus(square(alpha, around=w_g)), w_g)
            for data in points(drawn)
        ]
        w_g = sum(w_k) / 3
        assert_same(flat(state.server.w), w_g, 1e-12)


def test_fedavg_is_fedprox_at_zero():
    drawn = federation(2, overlap=True)
    _, average = trajectory(fedlap.FedAvg(), drawn, 5, **GUARDED)
    _, prox = trajectory(fedlap.FedProx(alpha=0.0), drawn, 5, **GUARDED)
    assert_same(weights(prox), weights(average), 1e-12)
    _, other = trajectory(fedlap.FedProx(alpha=1e-3), drawn, 5, **GUARDED)
    assert distance(weights(other), weights(average)) > 1e-4


def test_feddyn_equals_fedadmm_on_equal_client_sizes():
    drawn = federation(7, sizes=[12, 12, 12])
    _, admm = trajectory(fedlap.FedADMM(alpha=0.5), drawn, 10)
    _, dyn = trajectory(fedlap.FedDyn(alpha=0.5), drawn, 10)
    assert_same(weights(dyn[1:]), weights(admm[1:]), 1e-12)
    assert_same(flat(dyn[-1].clients.factor.v), flat(admm[-1].clients.factor.v), 1e-12)


def test_fedlap_with_rho_summing_to_one_has_fedavgs_server_step():
    """w_g = Σv_k before and after, so it becomes Σρ_k w_k: for ρ = N_k/N the average weighted by size."""
    drawn, delta = federation(8, sizes=[12, 3, 5]), 1.5
    _, states = trajectory(fedlap.FedLap(delta=delta, rho=fedlap.by_share), drawn, 5)
    for before, after in itertools.pairwise(states):
        w = [local(softmax, data, before, k, delta=delta) for k, data in enumerate(points(drawn))]
        assert_same(flat(after.server.w), drawn.sizes @ np.stack(w) / drawn.sizes.sum(), 1e-12)


def test_fedlap_cov_with_rho_evenly_is_a_precision_weighted_average_from_round_one():
    """S_g ← 1/K ΣS_k and w_g ← (ΣS_k)⁻¹ ΣS_k w_k, S_k = H_k(w_k) − V_k + S_g: a logarithmic opinion pool."""
    drawn = federation(8, sizes=[12, 3, 5])
    _, states = trajectory(fedlap.FedLapCov(delta=1.5, rho=fedlap.evenly), drawn, 5)
    for before, after in itertools.pairwise(states):
        w, S = [], []
        for k, data in enumerate(points(drawn)):
            w.append(local(softmax, data, before, k))
            H = oracle.structured(softmax.hessian(data, w[k]), "diagonal")
            S.append(H - dense(before.clients.factor.V)[k] + dense(before.server.S))
        pool = sum(S)
        assert_same(dense(after.server.S), pool / 3, 1e-12)
        assert_same(flat(after.server.w), np.linalg.solve(pool, sum(a @ b for a, b in zip(S, w, strict=True))), 1e-12)


@pytest.mark.parametrize("rho", [0.2, 1.0])
def test_V_stays_positive_and_so_do_all_S(rho):
    """Sec. 3.3: V_k is a convex combination of Hessians, so V_k ≥ 0; S_g contains V_k, so S_k = H_k − V_k + S_g > 0."""
    drawn, delta = federation(8, sizes=[12, 3, 5]), 0.5
    method = fedlap.FedLapCov(delta=delta, rho=rho, covariance="full")
    _, states = trajectory(method, drawn, 10, curvature=fedlap.ExactHessian())
    smallest = lambda matrices: np.linalg.eigvalsh(matrices).min()
    for before, after in itertools.pairwise(states):
        V, V_after = dense(before.clients.factor.V), dense(after.clients.factor.V)
        S_k = dense(before.server.S) + (V_after - V) / rho
        assert smallest(V_after) > -1e-12
        assert smallest(dense(after.server.S)) > delta - 1e-12
        assert smallest(S_k) > delta - 1e-12
    assert np.linalg.eigvalsh(V_after).max() > 0.1


def test_bcm_equals_the_first_round_of_fedlap_cov_with_rho_one():
    """Eq. (3) and eq. (21) from v = V = 0 and S_g = δI."""
    drawn = federation(9)
    _, once = trajectory(fedlap.BCM(delta=0.7), drawn, 1)
    _, cov = trajectory(fedlap.FedLapCov(delta=0.7, rho=1.0), drawn, 1)
    for a, b in ((once[-1].server, cov[-1].server), (once[-1].clients.factor, cov[-1].clients.factor)):
        for name, part in a._asdict().items():
            np.testing.assert_allclose(np.asarray(part), np.asarray(getattr(b, name)), rtol=1e-12, atol=1e-12)


# What is exact on quadratics.


def test_fedlap_cov_is_exact_in_one_round_on_diagonal_quadratics():
    drawn, delta = federation(3, diagonal=True), 0.5
    optimum, hessian = oracle.pooled(squared, points(drawn), delta)
    assert np.abs(hessian - np.diag(np.diag(hessian))).max() == 0
    _, states = trajectory(fedlap.FedLapCov(delta=delta, rho=1.0), drawn, 3, likelihood=Squared())
    for state in states[1:]:
        assert_same(flat(state.server.w), optimum, 1e-12)
        assert_same(dense(state.server.S), hessian, 1e-12)
    _, damped = trajectory(fedlap.FedLapCov(delta=delta, rho=1 / 3), drawn, 60, likelihood=Squared())
    errors = np.array([distance(w, optimum) for w in weights(damped)])
    ratios = errors[31:60] / errors[30:59]
    np.testing.assert_allclose(ratios, 1 - 1 / 3, rtol=1e-3)  # geometric, by what is left of V_k
    precision_errors = np.array([distance(dense(state.server.S), hessian) for state in damped])
    np.testing.assert_allclose(precision_errors[:40], precision_errors[0] * (2 / 3) ** np.arange(40), rtol=1e-6)


def test_bcm_is_exact_on_quadratics_with_full_covariance():
    drawn, delta = federation(3, FOUR), 0.5
    optimum, hessian = oracle.pooled(squared, points(drawn), delta)
    _, full = trajectory(fedlap.BCM(delta=delta, covariance="full"), drawn, 1, likelihood=Squared())
    assert_same(flat(full[-1].server.w), optimum, 1e-12)
    assert_same(dense(full[-1].server.S), hessian, 1e-12)


def test_fedlap_with_rho_one_diverges_where_one_over_K_converges():
    """With δ of the order of the curvature K clients overshoot K times; damping by 1/K does not."""
    drawn = federation(3, diagonal=True)
    delta = np.mean([np.diag(squared.hessian(data, np.zeros(THREE.weights))).mean() for data in points(drawn)])
    optimum, _ = oracle.pooled(squared, points(drawn), delta)
    errors = {}
    for rho in (1.0, 1 / 3):
        _, states = trajectory(fedlap.FedLap(delta=delta, rho=rho), drawn, 100, likelihood=Squared())
        errors[rho] = [distance(w, optimum) for w in weights(states)]
    assert errors[1.0][-1] > 1e3 * errors[1.0][1]
    assert errors[1 / 3][-1] < 1e-3


def exact_mean_field(drawn, delta):
    """argmin_q KL(q ‖ posterior) over diagonal Gaussians: the mean, and the diagonal of the precision."""
    optimum, hessian = oracle.pooled(squared, points(drawn), delta)
    return optimum, np.diag(np.diag(hessian))


@hyperparameters
class Stay(FullBatch):
    """No step at all: an argmin is where it begins."""

    def minimise(self, problem, state):
        return problem.start, state


def test_only_in_round_1_pvi_begins_at_its_start_precision():
    """With q_k = N(w, 50⁻¹) where S_g = 4, a factor is ρ·46, and nothing is added to it where q_k begins at S_g."""
    method = fedlap.PVI(delta=4.0, rho=0.25, samples=1, start_precision=50.0)
    _, states = trajectory(method, federation(3, diagonal=True), 2, solver=Stay())
    for state in states[1:]:
        assert_same(dense(state.server.S), (4 + THREE.clients * 0.25 * 46) * np.eye(THREE.weights))


@pytest.mark.parametrize("diagonal", [True, False])
def test_pvi_finds_the_exact_posterior_on_quadratics(diagonal):
    """Eq. (4): at its fixed point, with exact expectations; for quadratics that are not separable, the best q."""
    drawn, delta = federation(3, diagonal=diagonal), 4.0
    mean, precision = exact_mean_field(drawn, delta)
    method = fedlap.PVI(delta=delta, rho=0.3, samples=2 * THREE.weights)
    _, states = trajectory(method, drawn, 400, solver=SigmaPoints(), likelihood=Squared())
    assert_same(flat(states[-1].server.w), mean)
    assert_same(dense(states[-1].server.S), precision)


def test_pvi_with_adam_and_sampling_comes_near_the_exact_posterior():
    """Adam's jitter and ten samples a step leave a few per cent of a posterior standard deviation."""
    drawn, delta = federation(3, diagonal=True), 1.0
    mean, precision = (np.diag(each) if each.ndim == 2 else each for each in exact_mean_field(drawn, delta))
    solver = fedlap.adam(epochs=2000, batch=12, learning_rate=0.002)
    _, states = trajectory(fedlap.PVI(delta=delta, rho=1.0), drawn, 8, solver=solver, likelihood=Squared())
    found = weights(states[3:]).mean(0), np.mean([flat(state.server.S) for state in states[3:]], axis=0)
    assert np.abs((found[0] - mean) * np.sqrt(precision)).max() < 0.05
    assert np.abs(found[1] / precision - 1).max() < 0.05


def test_a_site_keeps_its_sign_in_single_precision():
    """Eq. (21): V_k ← (1 − ρ)V_k + ρH_k cannot be negative. By way of S_k − S_g it was: 5 − 8 where S_g is 1e8."""
    number = lambda x: Diagonal(Vector(np.array([x], np.float32)))
    algorithm, point = fedlap.FedLapCov(delta=1.0, rho=1.0), Vector(np.ones(1, np.float32))
    g = Gaussian(point, number(100_000_008.0))
    for before, H, after in ((5.0, 0.0, 0.0), (1e8, 3.0, 3.0), (5.0, 7.0, 7.0)):
        new = algorithm.factor_update(
            g, DampedFactor(0 * point, number(before), np.float32(1)), Laplace(point, number(H)), None
        )
        assert np.asarray(new.V.flat).item() == after


# What is sent, what is not, and where it starts.


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        (fedlap.FedAvg(), {"w": 6, "n": 1}),
        (fedlap.FedProx(alpha=1.0), {"w": 6, "n": 1}),
        (fedlap.FedADMM(alpha=1.0), {"w": 6}),
        (fedlap.FedDyn(alpha=1.0), {"w": 6}),
        (fedlap.SCAFFOLD(), {"w": 6, "c": 6, "share": 1}),
        (fedlap.FedOpt(learning_rate=1.0), {"w": 6, "n": 1}),
        (fedlap.FedLap(delta=1.0), {"v": 6}),
        (fedlap.BCM(delta=1.0), {"v": 6, "V": 6}),
        (fedlap.PVI(delta=1.0), {"v": 6, "V": 6, "reached": 1}),
        (fedlap.FedLapCov(delta=1.0), {"v": 6, "V": 6, "reached": 1}),
        (fedlap.FedLapCov(delta=1.0, covariance="full"), {"v": 6, "V": 36, "reached": 1}),
        (fedlap.FedLapFunc(delta=1.0), {"v": 6, "y": 9 + 3}),
        (fedlap.BayesADMM(delta=1.0), {"v": 6, "V": 6, "reached": 1}),
        (fedlap.FedLapCovFunc(delta=1.0), {"v": 6, "V": 6, "y": 9 + 3, "reached": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_communication_is_P_2P_and_P_plus_C_squared(method, numbers):
    """Secs. 3.2 to 3.4, P = 6 and C = 3: soft labels are C numbers for C points, and each point's weight N_kc/M_kc.

    One number more says how much of its target a damped factor has reached.
    """
    _, (state,) = trajectory(method, federation(4, overlap=True), 0)
    sent = state.clients.contribution
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree)) // THREE.clients
    assert {name: size(part) for name, part in sent._asdict().items()} == numbers


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(PRIORLESS)))
def test_the_prior_is_a_fixed_point_of_the_server_line(name):
    """Nobody has said anything, so the prior stays: N(0, I/δ), and not the network's initial weights."""
    scattered = Network((Flatten(), Dense(bias=False)))
    run, (state,) = trajectory(ALGORITHMS[name](delta=0.7), federation(4, overlap=True), 0, model=scattered)
    assert np.abs(flat(state.start)).min() > 1e-3
    after = server_round(run.setup, state.server, state.clients.contribution, np.ones(3, np.float32))
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(state.server), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(flat(state.server.w), 0)
    if hasattr(state.server, "S"):
        np.testing.assert_array_equal(dense(state.server.S), 0.7 * np.eye(THREE.weights))


@pytest.mark.parametrize("method", [fedlap.FedLap(delta=1.5, rho=0.3), fedlap.FedLapCov(delta=1.5, rho=0.3)], ids=repr)
def test_a_random_init_is_only_where_the_optimiser_starts(method):
    """The prior's mean is zero in round 1 too: on a convex problem the init does not change the answer."""
    drawn = federation(5)
    scattered = Network((Flatten(), Dense(bias=False)))
    _, zero = trajectory(method, drawn, 4)
    for seed in (0, 1):
        _, random = trajectory(method, drawn, 4, model=scattered, seed=seed, **GUARDED)
        assert np.abs(flat(random[0].start)).min() > 1e-3
        assert_same(weights(random[1:]), weights(zero[1:]), 1e-10)


@pytest.mark.parametrize("structure", [Diagonal, Full])
def test_three_terms_of_line_one_are_one_quadratic(structure):
    """The cavity: vᵀw − ½wᵀVw + ½‖w − w_g‖²_{S_g} is −log of q_g / t_k, precision S_g − V, up to a constant."""
    rng = np.random.default_rng(0)
    like = Vector((jnp.zeros((2, 2)), jnp.zeros(1)))
    v, w_g = (like.like(jnp.asarray(rng.normal(size=5))) for _ in range(2))
    root = rng.normal(size=(2, 5, 5))
    V, S = root[0] @ root[0].T, root[0] @ root[0].T + root[1] @ root[1].T
    if structure is Diagonal:
        V, S = (np.diag(np.diag(matrix)) for matrix in (V, S))
    wrap = lambda A: Diagonal(like.like(jnp.diag(jnp.asarray(A)))) if structure is Diagonal else Full(jnp.asarray(A))
    terms = quadratic.linear(v) - quadratic.square(wrap(V)) / 2 + quadratic.square(wrap(S), around=w_g) / 2
    cavity_mean = np.linalg.solve(S - V, S @ np.asarray(w_g.flat) - np.asarray(v.flat))
    for cavity in (terms, quadratic.fold(terms)):
        constants = []
        for w in rng.normal(size=(4, 5)):
            written = v.flat @ w - w @ V @ w / 2 + (w - w_g.flat) @ S @ (w - w_g.flat) / 2
            gaussian = (w - cavity_mean) @ (S - V) @ (w - cavity_mean) / 2
            value = cavity(like.like(jnp.asarray(w)))
            constants.append([value - written, value - gaussian])
        np.testing.assert_allclose(constants, np.tile(constants[0], (4, 1)), atol=1e-12)
