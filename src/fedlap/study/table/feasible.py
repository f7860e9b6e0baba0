"""Whether pooled statistics can be those of rows within the study's ranges, with this site's own rows among them.

A site standardises its rows by what a server says of all rows. What the others can have is known: so many values, each
within the column's range. A mean and a deviation that no such values have are not the pooled ones.
"""

import math

from fedlap.errors import DataError
from fedlap.study.table.columns import Column
from fedlap.study.table.encoding import Pooled, Statistics, numbers
from fedlap.study.table.requirements import Requirements

ROUNDING = 1e-9  # of the sums that are compared


def check_pooled(study: Requirements, own: Statistics, pooled: Pooled) -> None:
    """DataError unless a site's own statistics can be part of these."""
    others = float(pooled.rows - own.rows)
    if others < 0 or others % 1:
        raise DataError(f"the server counts {pooled.rows:g} training rows in all; this site alone has {own.rows:g}")
    columns = zip(numbers(study), *map(list, own[1:]), *map(list, pooled[1:]), strict=True)
    for column, count, total, square, pooled_count, mean, deviation in columns:
        where = f"the pooled statistics of {column.name}"
        rest = pooled_count - count
        if rest % 1 or not 0 <= rest <= others:
            raise DataError(
                f"{where}: {pooled_count:g} values, of which {count:g} are this site's; expected from {count:g} to "
                f"{count + others:g}"
            )
        if pooled_count:
            _check_moments(column, where, (count, total, square), (pooled_count, mean, deviation))
        elif mean != 0 or deviation != 1:
            raise DataError(f"{where}: no values, with mean {mean:g} and deviation {deviation:g}; expected 0 and 1")


def _check_moments(
    column: Column, where: str, own: tuple[float, float, float], pooled: tuple[float, float, float]
) -> None:
    """DataError unless the values that are not this site's can make up the difference."""
    (count, total, square), (pooled_count, mean, deviation) = own, pooled
    low, high = column.minimum, column.maximum
    bounded = math.isfinite(low) and math.isfinite(high)
    edge = ROUNDING * max(abs(mean), *(abs(bound) for bound in (low, high) if math.isfinite(bound)), 0.0)
    if not low - edge <= mean <= high + edge:
        raise DataError(f"{where}: mean {mean:g}; expected {column.expected()}")
    if not deviation > 0:
        raise DataError(f"{where}: deviation {deviation:g}; expected a number above 0")
    away = square - 2 * mean * total + count * mean * mean  # of this site's values from the mean, squared
    # A column that is the same everywhere has deviation 1: it is divided by, and there is nothing to divide.
    constant = deviation == 1 and abs(away) <= ROUNDING * (square + count * mean * mean)
    if constant:
        return
    if bounded and deviation > (high - low) / 2 * (1 + ROUNDING):
        raise DataError(f"{where}: deviation {deviation:g}; expected at most half of the range, {(high - low) / 2:g}")
    rest = pooled_count - count
    squares = pooled_count * (deviation * deviation + mean * mean)
    rest_total, rest_square = pooled_count * mean - total, squares - square
    slack = ROUNDING * (pooled_count * (abs(mean) + deviation) + abs(total))
    slack_square = ROUNDING * (squares + square)
    possible = rest_square >= -slack_square and (
        rest_total**2 <= rest * (rest_square + slack_square) + 2 * abs(rest_total) * slack + slack**2
    )
    if math.isfinite(low):
        possible = possible and rest_total >= rest * low - slack
    if math.isfinite(high):
        possible = possible and rest_total <= rest * high + slack
    if bounded:  # each value x has (x − low)(high − x) ≥ 0
        inside = (low + high) * rest_total - rest * low * high - rest_square
        possible = possible and inside >= -(slack_square + abs(low + high) * slack + ROUNDING * rest * abs(low * high))
    if not possible:
        raise DataError(
            f"{where}: mean {mean:g} and deviation {deviation:g} of {pooled_count:g} values; expected some that the "
            f"other {rest:g} values can have beside this site's {count:g}, each {column.expected()}"
        )
