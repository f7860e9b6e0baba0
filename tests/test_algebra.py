"""Vectors, precisions, quadratics, Gaussians, soft labels and damping: small pieces, each against NumPy."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from fedlap.algebra.damping import DAMPING, damping
from fedlap.algebra.gaussian import LogGaussian, expected_log_site, kl
from fedlap.algebra.precision import Diagonal, Full, Isotropic, Shifted, identity
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.soft_labels import Memory, SoftLabels, weigh
from fedlap.algebra.vector import Vector

SHAPES = {"weight": (2, 3), "bias": (2,)}
SIZE = 8


def vector(seed, *leading):
    rng = np.random.default_rng(seed)
    return Vector({name: jnp.asarray(rng.normal(size=(*leading, *shape))) for name, shape in SHAPES.items()})


def spd(seed):
    root = np.random.default_rng(seed).normal(size=(SIZE, SIZE))
    return root @ root.T + np.eye(SIZE)


def precision(structure, seed):
    """A positive precision and the same as a matrix."""
    if structure == "diagonal":
        d = vector(seed).map(jnp.exp)
        return Diagonal(d), np.diag(d.flat)
    matrix = spd(seed)
    return Full(jnp.asarray(matrix)), matrix


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


# Vectors.


def test_a_vector_is_its_flat_numbers():
    v, w = vector(0), vector(1)
    a, b = np.asarray(v.flat), np.asarray(w.flat)
    assert v.size == a.size == SIZE
    for found, wanted in (
        (v + w, a + b),
        (v - w, a - b),
        (-v, -a),
        (v * 2, a * 2),
        (2 * v, a * 2),
        (np.float64(2) * v, a * 2),
        (jnp.asarray(2.0) * v, a * 2),
        (v / 4, a / 4),
        (v + 1, a + 1),
        (1 + v, a + 1),
        (1 - v, 1 - a),
        (v - 1, a - 1),
        (v.times(w), a * b),
        (v.map(jnp.exp), np.exp(a)),
        (v.like(jnp.asarray(b)), b),
    ):
        assert isinstance(found, Vector)
        assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, v)
        same(found.flat, wanted)
    same(v @ w, a @ b)


def test_stacked_vectors_add_up_over_clients():
    stacked = vector(0, 4)
    rows = np.stack([jax.tree.map(lambda leaf: leaf[k], stacked).flat for k in range(4)])  # noqa: B023
    same(stacked.sum(0).flat, rows.sum(0))


# Precisions.


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_precision_is_its_matrix(structure):
    (S, A), (T, B), w = precision(structure, 0), precision(structure, 1), vector(2)
    x, I = np.asarray(w.flat), np.eye(SIZE)
    same((S @ w).flat, A @ x)
    same(S.solve(w).flat, np.linalg.solve(A, x))
    same(S.logdet(), np.linalg.slogdet(A)[1])
    for found, wanted in (
        (S + T, A + B),
        (S - T, A - B),
        (-S, -A),
        (3 * S, 3 * A),
        (S * 3, 3 * A),
        (S / 3, A / 3),
        (0.5 + S, A + 0.5 * I),
        (S - 0.5, A - 0.5 * I),
        (jnp.asarray(0.5) + S, A + 0.5 * I),
        (S + Isotropic(0.5), A + 0.5 * I),
        (Isotropic(0.5) + S, A + 0.5 * I),
        (S - Isotropic(0.5), A - 0.5 * I),
        (Isotropic(0.5) - S, 0.5 * I - A),
        (identity(structure, w), I),
    ):
        assert type(found) in (type(S), Shifted)  # a number added to a full one is kept apart
        same((found @ w).flat, wanted @ x)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), S, T)
    same((stacked.sum(0) @ w).flat, (A + B) @ x)
    same(np.diag(S.flat) if structure == "diagonal" else S.flat, A)


def test_isotropic_is_a_multiple_of_the_identity():
    w = vector(0)
    same(((2 * Isotropic(1.5) - Isotropic(0.5)) @ w).flat, 2.5 * w.flat)


def test_both_structures_agree_where_the_matrix_is_diagonal():
    (S, A), w = precision("diagonal", 0), vector(1)
    full = Full(jnp.asarray(A))
    same(S.solve(w).flat, full.solve(w).flat)
    same(S.logdet(), full.logdet())
    same(np.diag((S - 1).positive_part().flat), (full - 1).positive_part().flat)


def test_the_positive_part_drops_negative_eigenvalues_and_nothing_else():
    A = spd(0) - 6 * np.eye(SIZE)
    values, vectors = np.linalg.eigh(A)
    assert values.min() < 0 < values.max()
    same(Full(jnp.asarray(A)).positive_part().flat, vectors @ np.diag(np.maximum(values, 0)) @ vectors.T)
    d = vector(3)
    same(Diagonal(d).positive_part().flat, np.maximum(d.flat, 0))
    S, _ = precision("full", 1)
    same(S.positive_part().flat, S.flat)


def test_an_unknown_structure_is_refused():
    with pytest.raises(fedlap.ConfigError, match='covariance is "banded"; expected "diagonal" or "full"'):
        identity("banded", vector(0))


# Quadratics.


def written_out(v, V, S, m):
    """vᵀw − ½wᵀVw + ½‖w − m‖²_S as anyone would write it."""
    return lambda w: v.flat @ w - w @ V @ w / 2 + (w - m.flat) @ S @ (w - m.flat) / 2


def derivatives(function, w, m):
    """Its differences, its gradient and its Hessian, compiled together because single operations are slow to."""
    of = lambda x, y: (function(x) - function(y), jax.grad(function)(x), jax.hessian(function)(x))
    return jax.jit(of)(w.flat, m.flat)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_quadratic_has_the_derivatives_of_what_is_written(structure):
    (V, A), (S, B), v, m, w = precision(structure, 0), precision(structure, 1), vector(2), vector(3), vector(4)
    found, wanted = linear(v) - square(V) / 2 + square(S, around=m) / 2, written_out(v, A, B, m)
    for a, b in zip(derivatives(lambda x: found(w.like(x)), w, m), derivatives(wanted, w, m), strict=True):
        same(a, b)


@pytest.mark.parametrize("around", [True, False])
def test_an_isotropic_quadratic_may_be_folded_into_its_minimiser(around):
    v, m, w = vector(0), vector(1), vector(2)
    centre = {"around": m} if around else {}
    zero = m if around else 0 * m
    whole = 0.7 * linear(v) + 1.5 / 2 * square(**centre)
    wanted = lambda x: 0.7 * v.flat @ x + 1.5 / 2 * (x - zero.flat) @ (x - zero.flat)
    for found in (whole, fold(whole)):
        for a, b in zip(derivatives(lambda x: found(w.like(x)), w, m), derivatives(wanted, w, m), strict=True):  # noqa: B023
            same(a, b)
    lowest = zero - 0.7 / 1.5 * v
    same(derivatives(lambda x: fold(whole)(w.like(x)), lowest, m)[1], np.zeros(SIZE))


def test_quadratics_form_a_vector_space():
    (S, A), v, m, w = precision("full", 0), vector(1), vector(2), vector(3)
    gradient = jax.jit(lambda q: jax.grad(lambda x: q(w.like(x)))(w.flat))
    a, b = square(S, around=m), linear(v)
    same(gradient(a), 2 * A @ (w.flat - m.flat))
    same(gradient(b), v.flat)
    same(gradient(a + b), gradient(a) + gradient(b))
    same(gradient(b + a), gradient(a) + gradient(b))
    same(gradient(a - b), gradient(a) - gradient(b))
    same(gradient(-a), -gradient(a))
    same(gradient(a / 4), gradient(a) / 4)
    same(gradient(3 * a), 3 * gradient(a))
    same(gradient(a + square(S)), 2 * A @ (2 * w.flat - m.flat))


def test_where_nothing_pulls_the_gradient_is_exactly_zero():
    """Adam divides a gradient by its own size, so a rounding error would become full steps."""
    m, zero = vector(0), 0 * vector(0)
    nothing = Diagonal(zero)
    S = Diagonal(vector(1).map(jnp.exp))
    for cavity in (
        fold(0.3 * linear(zero) + 0.3 / 2 * square(around=m)),
        fold(linear(zero) - square(nothing) / 2 + square(S, around=m) / 2),
    ):
        gradient = jax.grad(lambda w: cavity(w))(m)  # noqa: B023
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_a_quadratic_is_a_constant_of_the_problem():
    """Nobody differentiates through w_g or the site."""
    w = vector(1)
    through = jax.grad(lambda m: square(around=m)(w))(vector(0))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(through))


# Gaussians.


def divergence(m, S, w, T):
    """KL(N(m, S⁻¹) ‖ N(w, T⁻¹)) of diagonal Gaussians, whole."""
    return np.sum(T / S - 1 - np.log(T / S) + T * (m - w) ** 2) / 2


def test_kl_is_the_divergence_of_gaussians_up_to_what_q_does_not_change():
    w, T = vector(0), Diagonal(vector(1).map(jnp.exp))
    constants = []
    for seed in range(3):
        q = LogGaussian(vector(10 + seed), vector(20 + seed))
        whole = divergence(np.asarray(q.m.flat), np.asarray(q.S.flat), np.asarray(w.flat), np.asarray(T.flat))
        constants.append(kl(q, w, T) - whole)
    same(constants, constants[0])
    gradient = jax.grad(lambda q: kl(q, w, T))(LogGaussian.of(w, T))
    same(np.concatenate([gradient.m.flat, gradient.u.flat]), 0)  # the nearest q is the other one


def test_a_log_gaussian_is_the_gaussian_it_was_made_of():
    w, S = vector(0), Diagonal(vector(1).map(jnp.exp))
    q = LogGaussian.of(w, S)
    same(q.m.flat, w.flat)
    same(q.S.flat, S.flat)


def test_the_expected_log_of_a_site_is_exact_and_so_are_sigma_points():
    """E[vᵀw − ½wᵀVw] = vᵀm − ½mᵀVm − ½tr(VS⁻¹); and 2P points with mean 0 and covariance I give the same."""
    q, v, V = LogGaussian(vector(0), vector(1)), vector(2), vector(3)
    m, s, b, a = (np.asarray(x.flat) for x in (q.m, q.S, v, V))
    wanted = b @ m - m @ (a * m) / 2 - np.sum(a / s) / 2
    same(expected_log_site(q, v, Diagonal(V)), wanted)
    points = np.sqrt(SIZE) * np.concatenate([np.eye(SIZE), -np.eye(SIZE)])
    site = lambda w: v @ w - w @ (Diagonal(V) @ w) / 2
    same(q.expect(site, jax.vmap(v.like)(jnp.asarray(points))), wanted)


def test_expectations_are_means_over_reparameterised_samples():
    q, noise = LogGaussian(vector(0), vector(1)), vector(2, 5)
    rows = np.stack([jax.tree.map(lambda leaf: leaf[i], noise).flat for i in range(5)])  # noqa: B023
    samples = np.asarray(q.m.flat) + rows / np.sqrt(np.asarray(q.S.flat))
    function = lambda w: jnp.sin(w.flat).sum()
    same(q.expect(function, noise), np.sin(samples).sum(1).mean())


# Soft labels.


def labels(seed, points, classes=3):
    rng = np.random.default_rng(seed)
    return SoftLabels(jnp.asarray(rng.uniform(1, 2, size=points)), jnp.asarray(rng.normal(size=(points, classes))))


def test_soft_labels_are_weighed_predictions():
    mass, probabilities = jnp.asarray([2.0, 0.0]), jnp.asarray([[0.25, 0.75], [0.5, 0.5]])
    soft = weigh(mass, probabilities)
    same(soft.mass, [2, 0])
    same(soft.targets, [[0.5, 1.5], [0, 0]])
    twice = soft + soft - 0.5 * soft
    same(twice.mass, [3, 0])
    same(twice.targets, [[0.75, 2.25], [0, 0]])


def test_labels_are_placed_where_their_points_are():
    mine = labels(0, 2)
    placed = Memory(jnp.zeros((5, 4)), jnp.asarray([3, 1])).place(mine)
    wanted_mass, wanted_targets = np.zeros(5), np.zeros((5, 3))
    wanted_mass[[3, 1]], wanted_targets[[3, 1]] = mine.mass, mine.targets
    same(placed.mass, wanted_mass)
    same(placed.targets, wanted_targets)


def test_padding_says_nothing_about_the_point_it_points_to():
    """A client with fewer points than others has zero weights at place 0, which belongs to somebody."""
    mine = weigh(jnp.asarray([2.0, 0.0]), jnp.asarray([[0.25, 0.75], [0.5, 0.5]]))
    placed = Memory(jnp.zeros((3, 4)), jnp.asarray([2, 0])).place(mine)
    same(placed.mass, [0, 0, 2])
    same(placed.targets[0], [0, 0])


def test_the_labels_of_all_clients_add_up_point_by_point():
    """Shared points too: both clients speak about point 1."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), labels(0, 2), labels(1, 2))
    both = Memory(jnp.zeros((3, 4)), jnp.asarray([[0, 1], [1, 2]])).place(stacked)
    mass, targets = np.asarray(stacked.mass), np.asarray(stacked.targets)
    same(both.mass, [mass[0, 0], mass[0, 1] + mass[1, 0], mass[1, 1]])
    same(both.targets, [targets[0, 0], targets[0, 1] + targets[1, 0], targets[1, 1]])


# Damping.


def client(round=0):
    return SimpleNamespace(count=4, share=0.3, round=round)


def test_rho_is_a_number_or_a_rule():
    assert damping(0.7, client()) == 0.7
    assert damping(fedlap.evenly, client()) == 1 / 4
    assert damping(fedlap.by_share, client()) == 0.3


def test_a_schedule_changes_once_after_its_rounds():
    rule = fedlap.then(fedlap.by_share, fedlap.evenly, after=3)
    assert [damping(rule, client(round)) for round in range(5)] == [0.3, 0.3, 0.3, 0.25, 0.25]
    default = fedlap.then(0.5, 0.1)
    assert [damping(default, client(round)) for round in (0, 9, 10, 11)] == [0.5, 0.5, 0.1, 0.1]
    nested = fedlap.then(1.0, fedlap.then(0.5, 0.25, after=4), after=2)
    assert [damping(nested, client(round)) for round in range(6)] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    traced = jax.jit(lambda round: damping(rule, client(round)))
    assert [float(traced(round)) for round in (2, 3)] == [0.3, 0.25]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"first": 7.0}, r"first is 7\.0; expected a number in \(0, 1\]"),
        ({"second": 0.0}, r"second is 0\.0; expected a number in \(0, 1\]"),
        ({"after": "ten"}, "after is 'ten'; expected a whole number, 0 or above"),
    ],
)
def test_a_wrong_schedule_is_refused(parts, message):
    given = {"first": "evenly", "second": 0.5, "after": 3} | parts
    with pytest.raises(fedlap.ConfigError, match=f"fedlap.rho: then: {message}"):
        DAMPING.read("fedlap.rho", given)


@pytest.mark.parametrize("rule", [fedlap.evenly, fedlap.by_share, fedlap.then(0.5, fedlap.evenly, after=7)], ids=repr)
def test_a_rule_can_be_written_and_read(rule):
    """By way of JSON, in which results keep it."""
    assert DAMPING.parse(json.loads(json.dumps(DAMPING.format(rule)))) == rule


def test_rules_that_are_none_are_refused():
    with pytest.raises(fedlap.ConfigError, match="rho"):
        DAMPING.read("rho", "evenley")
    with pytest.raises(fedlap.ConfigError, match="first, second and after"):
        DAMPING.read("rho", {"first": 0.1, "second": 0.2})
    assert DAMPING.parse(0.3) == 0.3 == DAMPING.format(0.3)


def test_a_quadratic_without_curvature_is_legal():
    v, w = vector(0), vector(1)
    for q in (linear(v), 3.0 * linear(v) / 3.0, linear(v) + 0.0 * square(around=w), jnp.asarray(2.0) * linear(v) / 2):
        folded = fold(q)
        same(folded(w) - folded(0 * w), v @ w)
        same(jax.grad(folded)(w).flat, v.flat)
