"""Which site each row is of."""

from typing import Any

import numpy as np

from fedlap.data import validation
from fedlap.errors import DataError

ONLY = "all"  # the name of the site that has every row, where none are given


def places_of(sites: Any, count: int) -> dict[str, np.ndarray]:
    """The row numbers of each site, by its name in sorted order; one site has all rows if `sites` is None."""
    if sites is None:
        return {ONLY: np.arange(count)}
    given = np.asarray(sites)
    if given.shape != (count,):
        raise DataError(f"sites has shape {given.shape}; expected one site for each of the {count} rows, ({count},)")
    if given.dtype.kind not in "buiUTOSf":
        raise DataError(f"sites are of type {given.dtype}; expected names, or numbers of sites")
    listed = given.tolist()
    for row, site in enumerate(listed):
        if validation.missing(site) or site == "":
            raise DataError(f"sites, row {row}: the site is {site!r}; expected a name, or a number")
    names, codes = np.unique(np.array([str(site) for site in listed]), return_inverse=True)
    return {str(name): np.flatnonzero(codes == code) for code, name in enumerate(names)}
