"""What passes between a site and the others, in numbers: counted from the shapes of what is said."""

from collections.abc import Mapping
from typing import NamedTuple

from fedlap.regression.fit import EXACT, ORDERS, SitesFit
from fedlap.regression.report.assessment import COARSE, FINE, Assessment

BYTES = 8  # of a number


class Message(NamedTuple):
    """How many numbers go to a site, and how many leave it."""

    down: int
    up: int


class Parcel(NamedTuple):
    """Messages of one kind and size, to and from one site."""

    what: str
    times: int
    each: Message

    @property
    def down(self) -> int:
        """Bytes to the site."""
        return BYTES * self.times * self.each.down

    @property
    def up(self) -> int:
        """Bytes that leave the site."""
        return BYTES * self.times * self.each.up


def answered(size: int) -> Message:
    """A round: weights and their precision to the site; its loss, its score and its factor from there."""
    return Message(size + size**2, 1 + size + size + size**2)


def of_fit(fit: SitesFit) -> list[Parcel]:
    """What a fit alone needs of each site."""
    size = len(fit.optimum.w)
    parcels = [*_before(fit), Parcel("rounds of the fit", fit.rounds, answered(size)), *_closing(fit)]
    if fit.covariance_kind == "robust, rows":
        parcels.append(Parcel("products of the rows' scores, for robust standard errors", 1, Message(0, size**2)))
    return parcels


def of_contributions(fit: SitesFit, site: str, rounds: Mapping[str, int]) -> list[Parcel]:
    """What leaving each site out asks of one of the others: `rounds` has how many each took."""
    size = len(fit.optimum.w)
    taken = [count for name, count in rounds.items() if name != site]
    return [
        Parcel("a loss before the rounds without another site", len(taken), Message(size, 1)),
        Parcel("rounds without another site", sum(taken), answered(size)),
    ]


def of_shapley(fit: SitesFit, null_rounds: int) -> list[Parcel]:
    """What Shapley values ask of each site: rounds of the null model, and a loss for every coalition."""
    sites, null = len(fit.optimum.factors), int(fit.regression.null.sum())
    coalitions = 2**sites - 1 if sites <= EXACT else max(ORDERS // sites, 20) * sites
    return [
        Parcel("rounds of the null model", null_rounds, answered(null)),
        Parcel("losses at the weights of coalitions, for Shapley values", coalitions, Message(len(fit.optimum.w), 1)),
    ]


def of_assessment(fit: SitesFit, assessment: Assessment) -> list[Parcel]:
    """What held-out rows ask of each site: one more fit, and sums by bin."""
    size = len(fit.optimum.w)
    sums = 4 + 3  # of the held-out rows, and their outcomes' moments
    if assessment.bins is not None:
        sums += 3 * FINE
    if assessment.residuals is not None:
        sums += 3 + 4 * COARSE
    again = [parcel._replace(what=f"{parcel.what}, without the held-out rows") for parcel in _before(fit)]
    return [
        *again,
        Parcel("rounds of the fit without the held-out rows", assessment.rounds, answered(size)),
        Parcel("sums over the held-out rows", 1, Message(size, sums)),
    ]


def _before(fit: SitesFit) -> list[Parcel]:
    """Moments of the columns, and the scale that follows from them."""
    columns = getattr(fit, "back_to_columns", None)
    if columns is None:
        return []
    width = len(columns)
    parcels = [
        Parcel("rows, means and products of the columns; their scale", 1, Message(2 * width, 1 + width + width**2)),
        Parcel("weight of the rows, constant of the log-likelihood", 1, Message(0, 2)),
    ]
    if getattr(fit, "family").link == "identity":  # noqa: B009
        parcels.append(Parcel("moments of the outcome; its unit", 1, Message(1, 3)))
    return parcels


def _closing(fit: SitesFit) -> list[Parcel]:
    """What is summed up once the weights are found."""
    family = getattr(fit, "family", None)
    if family is None:
        return []
    size = len(fit.optimum.w)
    parcels = [
        Parcel("closing sums: Pearson's, deviance, information", 1, Message(0, 2 + (0 if family.shapes else size**2)))
    ]
    if family.has_scale and getattr(fit, "prior", None) is not None:
        parcels.append(
            Parcel("Pearson's sum while a prior and a dispersion settle, at most", fit.rounds, Message(0, 1))
        )
    return parcels
