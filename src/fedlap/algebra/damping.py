"""Damping ρ, how far a factor moves in one round: a number, or one of these rules.

With Σ_k ρ_k = 1 the server's new mean is an average of the clients', so both rules below are safe;
ρ = 1 is Bayes' own step and needs a covariance that knows the curvature.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from fedlap.algebra.pytrees import is_traced, pytree, static
from fedlap.arrays import Array
from fedlap.checks import is_number
from fedlap.domains import WHOLE, Domain, as_real
from fedlap.errors import ConfigError, unknown


@pytree
class Evenly:
    """ρ = 1/K."""

    def __call__(self, k: Any) -> float:
        return 1 / k.count

    def __repr__(self) -> str:
        return "evenly"


@pytree
class ByShare:
    """ρ = N_k/N."""

    def __call__(self, k: Any) -> Any:
        return k.share

    def __repr__(self) -> str:
        return "by_share"


@pytree
class Then:
    """One rule for the first rounds, another after them: `then(by_share, evenly, after=10)`."""

    first: Any
    second: Any
    after: int = static()

    def __call__(self, k: Any) -> Any:
        early = k.round < self.after
        return early * damping(self.first, k) + (1 - early) * damping(self.second, k)

    def __repr__(self) -> str:
        return f"then({self.first!r}, {self.second!r}, after={self.after})"


def then(first: Any, second: Any, after: int = 10) -> Then:
    """`first` in rounds 1 … after, `second` from then on (the paper's CIFAR-10 setting)."""
    for name, rho in (("first", first), ("second", second)):
        if not is_traced(rho):
            DAMPING.check(f"then: {name}", rho)
    WHOLE.check("then: after", after)
    return Then(first, second, after)


evenly = Evenly()
by_share = ByShare()


def damping(rho: Any, k: Any) -> Any:
    """The value of ρ for client k."""
    return rho(k) if callable(rho) else rho


def undamped(V: Any, reached: Array) -> Any:
    """V_k / reached_k: what a damped V_k tends to. A client that was never drawn adds nothing."""
    return V * jnp.where(reached > 0, 1 / jnp.where(reached > 0, reached, 1), 0)


RULES = {"evenly": evenly, "by_share": by_share}
PARTS = ("first", "second", "after")


def _is_damping(value: Any) -> bool:
    """Whether a value is a number in (0, 1] or a rule. A function alone is none: no compiled program could take it."""
    if is_number(value):
        return 0 < value <= 1
    return callable(value) and dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parse(plain: Any) -> Any:
    """ρ from a settings file: a number, a rule's name, or { first, second, after } for a schedule."""
    if isinstance(plain, str):
        if plain not in RULES:
            raise unknown("rule", plain, RULES)
        return RULES[plain]
    if isinstance(plain, dict):
        if set(plain) != set(PARTS):
            raise ConfigError(f"{plain} is no schedule, which has exactly the keys first, second and after")
        return then(_parse(plain["first"]), _parse(plain["second"]), after=plain["after"])
    return as_real(plain)


def _format(rho: Any) -> Any:
    """What `_parse` reads as this ρ; of a rule that is not in RULES its repr, by which `_parse` refuses it."""
    if isinstance(rho, Then):
        return {"first": _format(rho.first), "second": _format(rho.second), "after": rho.after}
    if not callable(rho):
        return rho
    return next((name for name, rule in RULES.items() if type(rho) is type(rule) and rho == rule), repr(rho))


DAMPING = Domain("a number in (0, 1], evenly, by_share or a schedule of them", _is_damping, _parse, _format)
