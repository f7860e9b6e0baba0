"""A model over sites: what each site does with its own rows, and what is made of what they say.

The rows may be in this process or behind a network. A site needs its rows and the units, and the server sums: neither
needs anything of the other's.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar

from fedlap.regression.design import Design, SiteRows
from fedlap.regression.federation import Losses, losses_in_turn
from fedlap.regression.fit import SitesFit
from fedlap.regression.objective import Objective
from fedlap.regression.rounds import Ask, in_turn
from fedlap.regression.standard import Moments, Scale


class Opening(NamedTuple):
    """What a site says before the first round: sums over its rows."""

    complete: int  # rows without a missing value
    rows: float  # the same, each as often as it counts
    columns: Moments
    outcome: Moments  # of a duration none: zero rows
    events: float  # of a duration
    constant: float  # of the log-likelihood


class Units(NamedTuple):
    """What all sites count in: columns less their means in standard deviations, the outcome in one of its own."""

    scale: Scale
    outcome: float = 1.0


class Part(Protocol):
    """The rows of one site as a model takes them."""

    def opening(self) -> Opening:
        """What the site says before the first round."""
        ...

    def objective(self, units: Units) -> Objective:
        """The loss of its rows in these units; their columns are standardised in place."""
        ...


Fit = TypeVar("Fit", bound=SitesFit, covariant=True)


class SitesModel(Protocol[Fit]):
    """What is fitted: a design, and how the outcome follows from it."""

    @property
    def design(self) -> Design: ...

    @property
    def size(self) -> int:
        """The number of parameters."""
        ...

    def part(self, rows: SiteRows, where: str) -> Part:
        """The rows of a site; a DataError begins with `where` if the model cannot have them."""
        ...

    def units(self, openings: Mapping[str, Opening]) -> Units:
        """The units of all sites; DataError if their rows cannot be fitted."""
        ...

    def fit(
        self,
        openings: Mapping[str, Opening],
        units: Units,
        sites: Mapping[str, Objective],
        ask: Ask = in_turn,
        losses: Losses = losses_in_turn,
    ) -> Fit:
        """Fit the losses of sites, wherever these are."""
        ...


def fit_here(model: SitesModel[Fit], rows: Mapping[str, SiteRows]) -> Fit:
    """Fit a model to the rows of sites in this process."""
    parts = {name: model.part(each, f"site {name!r}") for name, each in rows.items()}
    openings = {name: part.opening() for name, part in parts.items()}
    units = model.units(openings)
    return model.fit(openings, units, {name: part.objective(units) for name, part in parts.items()})
