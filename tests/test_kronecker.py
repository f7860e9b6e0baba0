"""A Kronecker covariance: bases of layers, diagonals in them, and FedLap-Cov that runs in one, with its changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import oracle
import sites
from closeness import flat, same_bits
from drawn import Flat, federation, points, trajectory
from fedlap.algebra.covariance import Variances
from fedlap.algebra.kronecker import Kronecker, Rotated, Sides, Turn, TurnedVariances
from fedlap.algebra.precision import Diagonal
from fedlap.algebra.vector import Vector
from fedlap.engines.parties import Task
from fedlap.engines.predictive import Posterior
from fedlap.engines.sequential import run_server
from fedlap.models.curvature import ExactHessian, Examples, GaussNewton, no_turn
from fedlap.models.likelihood import categorical
from fedlap.models.network import Activation, Convolution, Dense, Flatten, Network
from methods import after, finish, simulation

MLP = fedlap.mlp(hidden=(4, 3), activation="tanh")
MIXED = Network((Convolution(2, 2), Activation("tanh"), Flatten(), Dense(3), Activation("tanh"), Dense(bias=False)))


STRUCTURES = ("diagonal", "full")


class Pair:
    """A layer of the user's own: two inputs, three outputs, no weights."""

    def apply(self, params, inputs, key=None):
        return inputs @ jnp.ones((2, 3))


class Drawn:
    """A small network at random weights, some examples by weight, and a random basis."""

    def __init__(self, model, shape, seed=0):
        rng = np.random.default_rng(seed)
        self.model, self.inputs = model, jnp.asarray(rng.normal(size=(7, *shape)))
        self.w = Vector(model.init(jax.random.key(seed), self.inputs[:1], 3)).map(lambda leaf: leaf + 0.1)
        self.weights = rng.uniform(0.5, 2, 7)
        labels = jnp.asarray(rng.integers(0, 3, 7))
        self.examples = Examples(self.inputs, labels, jnp.arange(7), jnp.asarray(self.weights), 7, jax.random.key(1))
        self.basis = self.turned(rng)

    def turned(self, rng):
        orthogonal = lambda eye: jnp.asarray(np.linalg.qr(rng.normal(size=eye.shape))[0])
        layers = jax.tree.map(orthogonal, no_turn(self.model, self.w.tree).tree)
        for layer in layers:
            if layer.get("weight") is not None and "bias" in layer:  # as in a basis that was found from moments
                layer["bias"] = Sides(layer["weight"].rows, None)
        return Kronecker(layers)

    def H(self, curvature=None):
        full = jax.jit(lambda tree: (curvature or GaussNewton()).full(self.model, categorical, tree, self.examples))
        return np.asarray(full(self.w.tree))


@jax.jit  # and so are others below: by itself each operation would be a program to compile
def matrix_of(basis, like):
    """U as a dense matrix, column by column."""
    return jax.vmap(lambda unit: (basis @ like.like(unit)).flat, out_axes=1)(jnp.eye(like.size))


@pytest.mark.parametrize(("model", "shape"), [(MLP, (5,)), (MIXED, (3, 3, 1))], ids=["dense", "with a convolution"])
@pytest.mark.parametrize("curvature", [GaussNewton(), ExactHessian()], ids=["Gauss-Newton", "Hessian"])
def test_a_curvature_in_a_basis_is_the_diagonal_of_the_full_one_there(model, shape, curvature):
    drawn = Drawn(model, shape)
    U, x = np.asarray(matrix_of(drawn.basis, drawn.w)), drawn.basis.T @ drawn.w
    np.testing.assert_allclose(U.T @ U, np.eye(len(U)), atol=1e-14)
    seen = drawn.basis.at(x)
    outputs = [model.apply(tree, drawn.inputs) for tree in (seen.tree, drawn.w.tree)]
    np.testing.assert_allclose(*outputs, atol=1e-13)
    turned = lambda tree: [getattr(curvature, each)(model, categorical, tree, drawn.examples) for each in STRUCTURES]
    diagonal, whole = jax.jit(turned)(seen.tree)
    dense = U.T @ drawn.H(curvature) @ U
    np.testing.assert_allclose(Vector(diagonal).flat, np.diag(dense), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(whole, dense, atol=1e-12)


def test_moments_are_those_of_inputs_and_of_gradients():
    """A and B of each layer against gradients of every example and output, one by one; a bias has B too."""
    drawn = Drawn(MLP, (5,))
    moments = lambda tree: GaussNewton().moments(MLP, categorical, tree, drawn.examples, drawn.basis)
    layers = jax.jit(moments)(drawn.w.tree).tree
    values = [drawn.inputs]
    for layer, own in zip(MLP.layers, drawn.w.tree, strict=True):
        values.append(layer.apply(own, values[-1]))
    F = np.asarray(categorical.factor(values[-1]))
    for i in (1, 3, 5):

        def rest(outputs, i=i):
            for layer, own in zip(MLP.layers[i + 1 :], drawn.w.tree[i + 1 :], strict=True):
                outputs = layer.apply(own, outputs[None])[0]
            return outputs

        J = np.asarray(jax.jit(jax.vmap(jax.jacobian(rest)))(values[i + 1]))
        G = np.einsum("nco,ncf->nfo", J, F)
        B = np.einsum("n,nfo,nfp->op", drawn.weights, G, G)
        A = np.einsum("n,na,nb->ab", drawn.weights, values[i], values[i])
        np.testing.assert_allclose(layers[i]["weight"].rows, B, atol=1e-13)
        np.testing.assert_allclose(layers[i]["weight"].columns, A, atol=1e-13)
        np.testing.assert_allclose(layers[i]["bias"].rows, B, atol=1e-13)
        # The block of a bias is B itself, so that its eigenbasis leaves nothing outside of the diagonal.
        vectors = Kronecker(layers).eigenbasis().tree[i]["bias"].rows
        off = vectors.T @ B @ vectors
        np.testing.assert_allclose(off, np.diag(np.diag(off)), atol=1e-13)


def test_a_rotated_precision_is_the_dense_one():
    drawn = Drawn(MIXED, (3, 3, 1))
    rng = np.random.default_rng(3)
    d, v = (drawn.w.like(jnp.asarray(rng.uniform(0.5, 2, drawn.w.size))) for _ in range(2))
    S, U = Rotated(drawn.basis, Diagonal(d)), np.asarray(matrix_of(drawn.basis, drawn.w))
    dense = U @ np.diag(d.flat) @ U.T
    np.testing.assert_allclose(S.full, dense, atol=1e-13)
    np.testing.assert_allclose((S @ v).flat, dense @ v.flat, rtol=1e-12)
    np.testing.assert_allclose(S.solve(v).flat, np.linalg.solve(dense, v.flat), rtol=1e-11)
    np.testing.assert_allclose(S.logdet(), np.linalg.slogdet(dense)[1], rtol=1e-12)
    np.testing.assert_allclose(np.asarray(S), np.diag(dense), rtol=1e-12)
    np.testing.assert_allclose((2 * S / 4 + (0.5 - S)).full, 0.5 * (np.eye(len(U)) - dense), atol=1e-13)
    positive = U @ np.diag(np.maximum(d.flat - 1, 0)) @ U.T
    np.testing.assert_allclose((S - 1.0).positive_part().full, positive, atol=1e-13)
    with pytest.raises(fedlap.ConfigError, match="different bases are added; expected one basis"):
        S + Rotated(drawn.turned(rng), Diagonal(d))


def test_a_turn_keeps_gradients_at_w_and_is_linear():
    drawn, rng = Drawn(MLP, (5,)), np.random.default_rng(4)
    new, draw = drawn.turned(rng), lambda: drawn.w.like(jnp.asarray(rng.uniform(0.1, 2, drawn.w.size)))
    turn = Turn.of(drawn.basis, new, drawn.w)
    old, U = (np.asarray(matrix_of(basis, drawn.w)) for basis in (drawn.basis, new))
    sites = [(draw(), Diagonal(draw())) for _ in range(2)]
    for v, V in sites:
        after_v, after_V = turn.turned(v, V)
        dense = old @ np.diag(V.flat) @ old.T
        np.testing.assert_allclose(after_V.flat, np.diag(U.T @ dense @ U), rtol=1e-12)
        gradient = U @ (after_v - after_V @ (new.T @ drawn.w)).flat
        np.testing.assert_allclose(gradient, old @ v.flat - dense @ drawn.w.flat, atol=1e-12)
        np.testing.assert_allclose(after_V.flat.sum(), V.flat.sum(), rtol=1e-12)
    (v, V), (other_v, other_V) = sites
    for whole, *parts in zip(
        turn.turned(v + other_v, V + other_V), *(turn.turned(*site) for site in sites), strict=True
    ):
        np.testing.assert_allclose(whole.flat, parts[0].flat + parts[1].flat, atol=1e-12)


def test_without_turns_it_is_the_diagonal():
    plain = after(simulation("fedlap_cov"), 3)
    unturned = after(simulation("fedlap_kron", hyper={"refresh": 0}), 3)
    np.testing.assert_allclose(flat(unturned.server.w), flat(plain.server.w), rtol=1e-12)
    np.testing.assert_allclose(flat(unturned.server.S), flat(plain.server.S), rtol=1e-12)
    np.testing.assert_allclose(flat(unturned.server.ahead), flat(plain.server.ahead), rtol=1e-12)
    assert not np.any([np.abs(leaf).max() for leaf in jax.tree.leaves(unturned.clients.contribution.moments)])


def test_the_server_line_holds_after_a_turn_for_factors_old_and_new():
    """Clients that have not had the new basis yet leave w_g and S_g as they are, and so do those that have."""
    run = simulation("fedlap_kron")
    state = after(run, 1)
    server, sent = state.server, state.clients.contribution
    assert server.odd == 1 and not np.any(sent.odd)
    late = [jax.tree.map(lambda leaf, k=k: leaf[k], sent) for k in range(3)]

    def current(t):
        v, V = server.turn.turned(t.v, t.V)
        return t._replace(v=v, V=V, odd=server.odd, told=0 * t.told, moments=0.0 * t.moments)

    for said in (late, [current(late[0]), *late[1:]], [current(t) for t in late]):
        again = run_server(run.setup, server, tuple(said), np.ones(3))
        for name in ("w", "S", "ahead"):
            np.testing.assert_allclose(flat(getattr(again, name)), flat(getattr(server, name)), atol=1e-12)
        assert again.odd == server.odd


def test_it_ends_at_the_pooled_optimum_through_turns():
    """With V_k the diagonals there, in the last basis of several."""
    drawn = federation(4, overlap=True)
    _, states = trajectory(fedlap.FedLapKron(delta=0.7, rho=0.4, refresh=4), drawn, 60)
    server = states[-1].server
    w, H = oracle.pooled(oracle.softmax, points(drawn), 0.7)
    np.testing.assert_allclose(flat(server.w), w, atol=1e-8)
    assert len({float(state.server.odd) for state in states[-8:]}) == 2
    U = np.asarray(matrix_of(server.turn.new, server.w))
    np.testing.assert_allclose(np.asarray(server.ahead.flat), np.diag(U.T @ H @ U), rtol=1e-3)


def test_a_run_that_was_stopped_between_turns_ends_in_the_same_bits(tmp_path):
    path = tmp_path / "run.npz"
    whole = finish(simulation("fedlap_kron"), 4)
    finish(simulation("fedlap_kron"), 2, checkpoint=path)
    assert same_bits(finish(simulation("fedlap_kron"), 4, checkpoint=path, resume=True).state, whole.state)


def test_a_site_counts_moments_as_a_full_covariance():
    """A_k of the first layer is Σ xxᵀ over a site's rows, which its rules about few rows are for."""
    full = sites.make_terms(fedlap.FedLapCov(delta=1.0, covariance="full"))
    assert sites.make_terms(fedlap.FedLapKron(delta=1.0)).covariances == full.covariances == 6
    assert sites.make_terms(fedlap.FedLapCov(delta=1.0)).covariances == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": fedlap.Model(lambda key, x: {"w": jnp.zeros((2, 3))}, lambda w, x: x @ w["w"])}, "none is known"),
        ({"model": Network((Flatten(), Pair()))}, r"turns dense layers, .*\(Network\) none is known"),
        ({"curvature": Flat()}, "curvature Flat.* has no `moments`, which a Kronecker covariance needs"),
    ],
)
def test_what_has_no_layers_is_refused(options, message):
    options = {"model": fedlap.logistic(), **options}
    with pytest.raises(fedlap.ConfigError, match=message):
        fedlap.Simulation.of(fedlap.FedLapKron(delta=1.0), federation(4, overlap=True), **options).init()


@pytest.mark.parametrize("method", [fedlap.FedLapCov, fedlap.BCM, fedlap.FedLapCovFunc])
def test_another_algorithm_says_who_has_a_kronecker_covariance(method):
    with pytest.raises(fedlap.ConfigError, match=r"covariance is .*; a Kronecker covariance is FedLapKron"):
        method(delta=1.0, covariance="kronecker")


# Predictions.


def test_predictions_walk_through_layers_of_which_some_are_turned():
    """J U diag(v) Uᵀ Jᵀ, dense, of a convolution that is left as it is and dense layers that are turned."""
    drawn = Drawn(MIXED, (4, 4, 1))
    v = jnp.asarray(np.random.default_rng(3).uniform(0.1, 2, drawn.w.size))
    spread = TurnedVariances(drawn.basis, Variances(drawn.w.like(v)))
    found = Posterior(Task(drawn.model, categorical, GaussNewton()), drawn.w, spread).predictive(drawn.inputs)
    apply = lambda w: drawn.model.apply(drawn.w.like(w).tree, drawn.inputs)
    U, J = matrix_of(drawn.basis, drawn.w), np.asarray(jax.jacrev(apply)(drawn.w.flat))
    assert not np.allclose(np.abs(U).max(0), 1)
    np.testing.assert_allclose(found.covariance, J @ U @ np.diag(v) @ U.T @ J.swapaxes(1, 2), rtol=1e-9, atol=1e-12)


def test_predictions_have_the_covariance_of_the_basis(tmp_path):
    """J S⁻¹ Jᵀ with the dense S = U D Uᵀ; a saved history has no basis, and says so instead of taking another S."""
    algorithm = fedlap.FedLapKron(delta=0.7, rho=0.5, refresh=2)
    solver = fedlap.adam(epochs=1, batch=8)
    history = fedlap.simulate(algorithm, federation(3), MLP, solver=solver, rounds=3, on_divergence="ignore")
    x = history.simulation.federation.test_inputs[:4]
    fit = history.fit
    S = np.asarray(fit.precision.full)
    assert not np.allclose(S, np.diag(np.diagonal(S)))
    apply = lambda w: fit.task.model.apply(fit.w.like(w).tree, jnp.asarray(x))
    J = np.asarray(jax.jit(jax.jacrev(apply))(fit.w.flat))
    np.testing.assert_allclose(history.predictive(x).covariance, J @ np.linalg.inv(S) @ J.swapaxes(1, 2), rtol=1e-8)
    history.save(tmp_path / "kept")
    loaded = fedlap.load(tmp_path / "kept")
    np.testing.assert_allclose(loaded.precision, history.precision)
    with pytest.raises(fedlap.ConfigError, match="saved without its basis"):
        loaded.predict(x, posterior=True)
