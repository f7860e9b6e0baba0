"""ρ, how far a site moves in one round: a number, or one of these rules.

With Σ_k ρ_k = 1 the server's new mean is an average of the clients', so both rules below are safe;
ρ = 1 is Bayes' own step and needs a covariance that knows the curvature.
"""

from .vector import pytree, static


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


def then(first, second, after=10):
    """`first` in rounds 1 … after, `second` from then on (the paper's CIFAR-10 setting)."""
    return Then(first, second, after)


evenly = Evenly()
by_share = ByShare()


def damping(rho, k):
    """The value of ρ for client k."""
    return rho(k) if callable(rho) else rho
