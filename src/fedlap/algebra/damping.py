"""ρ, how far a factor moves in one round: a number, or one of these rules.

With Σ_k ρ_k = 1 the server's new mean is an average of the clients', so both rules below are safe;
ρ = 1 is Bayes' own step and needs a covariance that knows the curvature.
"""

from typing import Any

import jax.numpy as jnp

from fedlap.algebra.hyperparameters import check_value
from fedlap.algebra.pytrees import pytree, static
from fedlap.errors import ConfigError, unknown


@pytree
class Evenly:
    """ρ = 1/K."""

    def __call__(self, k):
        return 1 / k.count


@pytree
class ByShare:
    """ρ = N_k/N."""

    def __call__(self, k):
        return k.share


@pytree
class Then:
    """One rule for the first rounds, another after them: `then(by_share, evenly, after=10)`."""

    first: object
    second: object
    after: int = static()

    def __call__(self, k):
        early = k.round < self.after
        return early * damping(self.first, k) + (1 - early) * damping(self.second, k)


def then(first: Any, second: Any, after: int = 10) -> Then:
    """`first` in rounds 1 … after, `second` from then on (the paper's CIFAR-10 setting)."""
    check_value("then", "first", first, "damping")
    check_value("then", "second", second, "damping")
    check_value("then", "after", after, "whole")
    return Then(first, second, after)


evenly = Evenly()
by_share = ByShare()


def damping(rho: Any, k: Any) -> Any:
    """The value of ρ for client k."""
    return rho(k) if callable(rho) else rho


def ahead(V: Any, reached: Any) -> Any:
    """Σ_k V_k / reached_k: what Σ_k V_k tends to. A client that has not spoken has reached and adds nothing."""
    return V.combine(jnp.where(reached > 0, 1 / jnp.where(reached > 0, reached, 1), 0))


RULES = {"evenly": evenly, "by_share": by_share}


def parse_damping(value: Any, where: str) -> Any:
    """ρ from a settings file: a number, a rule's name, or { first, second, after } for a schedule."""
    if isinstance(value, str):
        if value not in RULES:
            raise unknown(where, value, RULES)
        return RULES[value]
    if isinstance(value, dict):
        if set(value) != {"first", "second", "after"}:
            raise ConfigError(f"{where} is {value}; a schedule has exactly the keys first, second and after")
        first, second = (parse_damping(value[key], f"{where}.{key}") for key in ("first", "second"))
        try:
            return then(first, second, after=value["after"])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return value


def format_damping(value: Any) -> Any:
    """What `parse_damping` would read as this rule, or None if it is not a rule."""
    for name, rule in RULES.items():
        if value == rule:
            return name
    if isinstance(value, Then):
        parts = {key: getattr(value, key) for key in ("first", "second")}
        return {key: format_damping(part) or part for key, part in parts.items()} | {"after": value.after}
    return None
