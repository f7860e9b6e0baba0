"""What a site holds against a request before it computes: its own rules, and what the study's past explains.

A refusal names in the site's log the rule, what was found and the cure; on the network it says that there is a rule.
"""

import math
from typing import Any, NoReturn

import jax
import numpy as np

from fedlap.errors import DataError
from fedlap.study.protocol.contents import HeldBack
from fedlap.study.protocol.permits import Agreed, Permits, SiteRules
from fedlap.study.protocol.refusals import Reason, Refusal

ROUNDING = 1e-5  # of the first broadcast and of precisions: two machines differ by less
SHARE = 5  # a sum must be over minimum_rows rows, and at a small site over this part of its own
DECIMALS = 2  # of the mean NLL that is reported


def refuse(rule: str, found: str) -> NoReturn:
    """Refuse a request for a rule of this site's."""
    raise Refusal(Reason.POLICY, f"{found} (this site's rule: {rule})")


def check_size(rules: SiteRules, source: str, rows: int, parameters: int) -> None:
    """DataError if a site's rows are too few for its own rules; `parameters` are those of a full matrix."""
    if rows < rules.minimum_rows:
        raise DataError(
            f"{source}: {rows} rows to fit to; this site's rule is at least {rules.minimum_rows} (minimum_rows, "
            f"{rules.source})"
        )
    if parameters > rules.parameters_per_row * rows:
        raise DataError(
            f"{source}: a full covariance of {parameters} parameters from {rows} rows; this site's rule is at most "
            f"{rules.parameters_per_row:g} parameters a row (parameters_per_row, {rules.source}): from fewer rows it "
            f"would tell too much about single patients. Use fewer columns or a diagonal covariance in the study, or "
            f"agree by parameters_per_row = {math.ceil(100 * parameters / rows) / 100:g} in policy.toml beside the "
            "data file"
        )


def check_run(rules: SiteRules, permits: Permits, run: str) -> Agreed | None:
    """Refuse a run more than this site begins; the operator's agreement, if it is that which allows the run."""
    begun = permits.begun()
    if run in begun or len(begun) < rules.runs:
        return None
    agreed = permits.agreed()
    if agreed is None or len(begun) >= agreed.runs:
        allowed = max(rules.runs, agreed.runs if agreed else 0)
        refuse(
            f"runs = {rules.runs}, {rules.source}",
            f"the server begins the run {run}, after {', '.join(begun) or 'none'}; expected at most {allowed} of this "
            f"study. To agree to one more: fedlap study agree STUDY --name {permits.member}",
        )
    return agreed


def check_number(number: int, most: int) -> None:
    """Refuse a round that the study does not have."""
    if not 0 <= number <= most:
        refuse("rounds from the first to the last", f"round {number + 1}; the study has rounds 1 to {most + 1}")


def check_start(given: Any, expected: Any) -> None:
    """Refuse a first broadcast that is not the one which follows from the study."""
    for found, wanted in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        if not np.allclose(found, wanted, rtol=ROUNDING, atol=ROUNDING):
            apart = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
            refuse(
                "the first model follows from the study",
                f"what the server sends in round 1 is {apart:.3g} away from what the study and its seed give; expected "
                "the same. Of a server that means well, the versions of fedlap or jax differ",
            )


def check_precision(S: np.ndarray, known: np.ndarray) -> None:
    """Refuse a precision below what is known of it: the prior's, and this site's own part as last accepted.

    Both are matrices, or the diagonals of such. The others' parts are curvatures, which take nothing away.
    """
    surplus = np.asarray(S, np.float64) - np.asarray(known, np.float64)
    least = surplus.min() if surplus.ndim == 1 else np.linalg.eigvalsh((surplus + surplus.T) / 2)[0]
    scale = float(np.abs(S).max())
    if not least >= -ROUNDING * scale:
        refuse(
            "a precision is explained by the study's past",
            f"the server's precision is lower by {-least:.3g} than the prior and this site's own part together; "
            "expected no less. A server that was set back to an older state must be started anew",
        )


def effective_rows(weights: np.ndarray) -> float:
    """Of how many rows a sum with these weights effectively is: of all if they are equal, of one that outweighs all."""
    sizes = np.abs(np.asarray(weights, np.float64))
    largest = sizes.max(initial=0.0)
    if not largest > 0:
        return 0.0
    sizes = sizes / largest
    return float(sizes.sum() ** 2 / (sizes * sizes).sum())


def fewest(rules: SiteRules, rows: int) -> float:
    """Of how many rows a sum over this many must effectively be."""
    return min(rules.minimum_rows, rows / SHARE)


def check_spread(rules: SiteRules, effective: float, rows: int) -> None:
    """Refuse a model at which a few rows outweigh all others: what is sent would be about these patients alone."""
    least = fewest(rules, rows)
    if not effective >= least:
        refuse(
            f"minimum_rows = {rules.minimum_rows}, {rules.source}",
            f"at the server's model what would be sent comes effectively from {effective:.1f} of {rows} rows; expected "
            f"at least {least:.1f}. Of a server that means well, the model has become too sure: a larger delta, fewer "
            "weights, or a lower learning rate in the study",
        )


def report(rules: SiteRules, rows: int, correct: int, nll: float, last: bool) -> HeldBack:
    """The report on rows held back: the NLL rounded, and but for the last one also how many are right.

    Rounded to half of minimum_rows, so that a chosen model does not tell one or two rows from none.
    """
    step = 1 if last else max(1, rules.minimum_rows // 2)
    coarse = min(rows, step * round(correct / step))
    return HeldBack(rows, coarse, round(nll, DECIMALS) * rows)
