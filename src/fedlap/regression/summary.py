"""The table of a fit on a terminal or on paper: what was fitted, to whose rows, and every coefficient."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedlap.regression.fit import SitesFit

STATISTICS = 5e-4  # a p-value below is not printed as 0


class Summary(NamedTuple):
    """A head of pairs and a table of coefficients; printed, it is text of fixed width."""

    title: str
    head: list[tuple[str, str]]
    columns: list[str]
    lines: list[list[str]]
    notes: list[str]

    @staticmethod
    def of(fit: "SitesFit") -> "Summary":
        """The summary of a fit."""
        statistic = "t" if fit.degrees < float("inf") else "z"
        interval = fit.conf_int().to_numpy()
        rows = zip(
            fit.index,
            fit.params.to_numpy(),
            fit.bse.to_numpy(),
            fit.tvalues.to_numpy(),
            fit.pvalues.to_numpy(),
            interval,
            strict=True,
        )
        lines = [
            [label(name), *(number(each) for each in (value, error)), f"{z:.2f}", p_value(p), *map(number, ends)]
            for name, value, error, z, p, ends in rows
        ]
        columns = ["", "coef", "std err", statistic, f"P>|{statistic}|", "[0.025", "0.975]"]
        return Summary(fit.title, fit.head(), columns, lines, fit.notes())

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.head)
        head = [f"{name:<{width}}  {value}" for name, value in self.head]
        table = aligned([self.columns, *self.lines])
        rule = "─" * max(map(len, table))
        return "\n".join([self.title, rule, *head, rule, table[0], rule, *table[1:], rule, *self.notes])

    __repr__ = __str__


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def label(name: object) -> str:
    """The name of a coefficient; of a level's, both."""
    return ": ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def number(value: float) -> str:
    """Four digits or so, of large and of small numbers too."""
    if value != value:
        return "–"
    size = abs(value)
    return f"{value:.4f}" if 1e-3 <= size < 1e4 or size == 0 else f"{value:.4g}"


def p_value(p: float) -> str:
    """Three decimals; one that would be 0 is below the smallest of them."""
    return "<0.001" if p < STATISTICS else f"{p:.3f}"
