"""The prior's precision δ: a number, or the one under which the data are most likely (MacKay, 1992).

    γ = P − δ tr S⁻¹,    δ ← γ/‖w‖²

γ counts the weights that data determine. Where they determine none, the evidence says nothing of δ, and it stays as it
is; where they say that all weights are best at zero, δ would grow without end, and is held at MOST.

A diagonal S, of S = δI + H the diagonal δ + h_ii, counts too much, never too little:

    Σ_i h_ii/(h_ii + δ) ≥ Σ_i λ_i/(λ_i + δ) = P − δ tr S⁻¹,    λ the eigenvalues of H

as the diagonal of a symmetric matrix is majorised by its eigenvalues (Schur and Horn) and x/(x + δ) is concave; they
are equal where H is diagonal. What weights share is counted for each of them. δ is then too large, twice or so in a
regression. In a network γ may exceed the number of rows, and δ suppress what was learnt: there a number is better, see
benchmarks/evidence.py. That N rows of C classes determine at most N(C − 1) weights does not mend it: on a tenth of
Fashion-MNIST at δ = 1 a diagonal counts 62,000, that bound lets 48,000 pass, a diagonal in the eigenbasis of the layers
counts 28,000, and 210, ‖w‖², would be the count at which δ stays (`--count` there, one seed).
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedlap.algebra.precision import Diagonal
from fedlap.algebra.pytrees import as_call, is_traced, pytree, static
from fedlap.algebra.vector import Vector
from fedlap.arrays import Array
from fedlap.domains import POSITIVE, TRUTH, Domain, as_real, real
from fedlap.errors import ConfigError, unknown

LEAST, MOST = 1e-6, 1e6
PACE = 2  # times δ at most in a round: the clients follow by ρ only, and what shrinks a network to zero ends it
LITTLE = 1.4  # times δ in a round: noise of minibatches is less, and a δ on its way takes steps of PACE
START = real(f"a number from {LEAST:g} to {MOST:g}", lambda value: LEAST <= value <= MOST)


@pytree
class Evidence:
    """δ by the evidence, one step of MacKay's a round."""

    start: Any = 1.0
    by_layer: bool = static(default=False)

    __repr__ = as_call("evidence")


def evidence(start: float = 1.0, by_layer: bool = False) -> Evidence:
    """δ by the evidence, as `delta="evidence"`, from a start of your own; or one for each of the model's arrays.

    For regressions and other small models. With a diagonal covariance δ of a network comes out far too large.
    """
    if not is_traced(start):
        START.check("evidence: start", start)
    TRUTH.check("evidence: by_layer", by_layer)
    return Evidence(start, by_layer)


# What an algorithm asks -----------------------------------------------------------------------------------------------


def first(rule: Any, like: Vector) -> Any:
    """δ before the first round, for weights shaped as `like`: a number, or by layer a diagonal matrix."""
    if not isinstance(rule, Evidence):
        return rule
    return Diagonal(like.map(lambda leaf: jnp.full_like(leaf, rule.start))) if rule.by_layer else rule.start


def prior(rule: Any, g: Any) -> Any:
    """δ of a round, from what the server knew before it: w, δ, and the precision without the lag of damping."""
    if not isinstance(rule, Evidence):
        return rule
    gamma, squares = g.ahead.learnt(g.delta, g.w), g.w.times(g.w)
    if rule.by_layer:
        return Diagonal(jax.tree.map(lambda delta, *of: _step(delta, *map(_total, of)), g.delta.d, gamma, squares))
    return _step(g.delta, _total(gamma), _total(squares))


def kept(rule: Any, delta: Any) -> Any:
    """δ as the server's state keeps it: None where it is the algorithm's own number."""
    return delta if isinstance(rule, Evidence) else None


def _step(delta: Array, gamma: Array, square: Array) -> Array:
    """γ/‖w‖² within bounds; δ as it was where γ is no more than rounding."""
    heard = gamma > jnp.sqrt(jnp.finfo(gamma.dtype).eps)
    found = jnp.where(square > 0, gamma / jnp.where(square > 0, square, 1), MOST)
    return jnp.where(heard, jnp.clip(jnp.clip(found, delta / PACE, delta * PACE), LEAST, MOST), delta)


def _total(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


# What others ask of δ -------------------------------------------------------------------------------------------------


def smallest(rule: Any) -> Any:
    """The smallest δ that there may be."""
    return LEAST if isinstance(rule, Evidence) else rule


def plain(delta: Any) -> Any:
    """δ as a number, or by layer a number by the name of each array; None stays None."""
    if not isinstance(delta, Diagonal):
        return delta if delta is None or isinstance(delta, dict) else float(delta)
    return {name: float(array.ravel()[0]) for name, array in delta.d.named.items() if array.size}


def doubt(delta: Any) -> str | None:
    """What to say of a δ that has come to a bound, where the evidence has no maximum."""
    found = plain(delta)
    for name, value in (found if isinstance(found, dict) else {"the weights": found}).items():
        if value is not None and not LEAST * 1.001 < value < MOST / 1.001:
            where = "zero" if value > 1 else "infinity"
            return (
                f"by the evidence {name} would be best at {where}: its delta has come to the bound of {value:g}; if "
                "that cannot be, give delta a number"
            )
    return None


def unsettled(algorithm: Any, g: Any) -> str | None:
    """What to say of a δ that the next round would change by much, as where rounds were too few to come to its end."""
    rule = getattr(algorithm, "delta", None)
    if not isinstance(rule, Evidence):
        return None
    now, then = (found if isinstance(found, dict) else {"": found} for found in (plain(g.delta), plain(prior(rule, g))))
    for name, value in now.items():
        if not 1 / LITTLE < then[name] / value < LITTLE:
            of = f" of {name}" if name else ""
            return (
                f"delta{of} by the evidence is not at its end: {value:.3g}, and {then[name]:.3g} after one more round; "
                "give it more rounds, a start that is nearer, fedlap.evidence(start=…), or a number"
            )
    return None


def overcount(algorithm: Any, weights: int, rows: int) -> str | None:
    """What to say of a diagonal that counts more weights than rows could determine."""
    rule, structure = getattr(algorithm, "delta", None), getattr(algorithm, "covariance", None)
    if not isinstance(rule, Evidence) or structure != "diagonal" or weights <= rows:
        return None
    return (
        f"delta by the evidence, with a diagonal covariance and more weights ({weights:,}) than rows ({rows:,}): it "
        "will be too large, as a diagonal counts weights that share what data say; give delta a number, or use "
        'covariance="full"'
    )


WORDS = {"evidence": Evidence(), "evidence by layer": Evidence(by_layer=True)}
PARTS = ("rule", "start")


def _is_prior(value: Any) -> bool:
    if isinstance(value, Evidence):
        return is_traced(value.start) or START.holds(value.start)
    return POSITIVE.holds(value)


def _parse(plain: Any) -> Any:
    """δ from a settings file: a number, a word, or { rule, start } to begin elsewhere."""
    if isinstance(plain, str):
        if plain not in WORDS:
            raise unknown("rule", plain, WORDS)
        return WORDS[plain]
    if isinstance(plain, dict):
        if set(plain) != set(PARTS):
            raise ConfigError(f"{plain} is no rule with a start, which has exactly the keys rule and start")
        return evidence(as_real(plain["start"]), by_layer=_parse(plain["rule"]).by_layer)
    return as_real(plain)


def _format(delta: Any) -> Any:
    """What `_parse` reads as this δ."""
    if not isinstance(delta, Evidence):
        return delta
    word = next(word for word, rule in WORDS.items() if rule.by_layer == delta.by_layer)
    return word if delta.start == Evidence().start else {"rule": word, "start": delta.start}


PRIOR = Domain('a number above 0, "evidence" or "evidence by layer"', _is_prior, _parse, _format)
