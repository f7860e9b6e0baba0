"""Families by name. A new one is a file here and a line below."""

from fedlap.errors import unknown
from fedlap.regression.families.base import Family
from fedlap.regression.families.binomial import BinomialFamily
from fedlap.regression.families.gamma import GammaFamily
from fedlap.regression.families.gaussian import GaussianFamily
from fedlap.regression.families.multinomial import MultinomialFamily
from fedlap.regression.families.negative_binomial import NegativeBinomialFamily
from fedlap.regression.families.poisson import PoissonFamily

FAMILIES: dict[str, type[Family]] = {
    "gaussian": GaussianFamily,
    "binomial": BinomialFamily,
    "poisson": PoissonFamily,
    "negative_binomial": NegativeBinomialFamily,
    "gamma": GammaFamily,
    "multinomial": MultinomialFamily,
}


def family(name: str, levels: int = 2) -> Family:
    """The family of that name, for an outcome of so many levels if they are unordered."""
    if name not in FAMILIES:
        raise unknown("family", name, FAMILIES)
    return FAMILIES[name](levels)
