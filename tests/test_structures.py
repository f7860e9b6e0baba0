"""Programs are cached by the structure of their arguments, so structures of different classes must differ."""

import jax
import pytest

import fedlap
from fedlap.algebra.damping import by_share, evenly


def test_structures_of_two_algorithms_are_never_equal():
    # With jax's own register_dataclass FedProx and FedADMM, one number each, compare equal in jaxlib 0.10.
    assert jax.tree.structure(fedlap.FedProx(alpha=1.0)) != jax.tree.structure(fedlap.FedADMM(alpha=1.0))
    assert jax.tree.structure(evenly) != jax.tree.structure(by_share)


@pytest.mark.parametrize("static", [{"covariance": "full"}, {"rho": 0.5}])
def test_what_changes_the_program_changes_the_structure(static):
    plain = jax.tree.structure(fedlap.FedLapCov(delta=1.0))
    assert plain != jax.tree.structure(fedlap.FedLapCov(delta=1.0, **static))
    assert plain == jax.tree.structure(fedlap.FedLapCov(delta=2.0))


def test_flattening_and_unflattening_gives_the_same_thing_back():
    thing = fedlap.FedLapCov(delta=1.0, covariance="full")
    leaves, structure = jax.tree.flatten(thing)
    assert jax.tree.unflatten(structure, leaves) == thing
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(thing)
    assert jax.tree_util.keystr(path) == ".delta"
