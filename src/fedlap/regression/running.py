"""Sums and counts over the rows up to each, such as those of risk sets.

A sum whose terms may be beyond the range of numbers is kept as its logarithm and the mean of what is summed.
"""

import numpy as np

BLOCK_ROWS = 2**15  # what is [rows, P] is worked out for so many at a time
FAN = 16  # rows that a running total takes together


def totals(logs: np.ndarray, means: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log Σ exp(logs) and the mean, so weighted, of each stretch of rows; none is empty."""
    top = np.maximum.reduceat(logs, starts)
    risks = np.exp(logs - np.repeat(top, np.diff(starts, append=len(logs))))
    sums = np.add.reduceat(risks, starts)
    return top + np.log(sums), np.add.reduceat(risks[:, None] * means, starts) / sums[:, None]


def running(logs: np.ndarray, means: np.ndarray, strata: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log Σ exp(logs) and the mean, so weighted, of each row and those before it in its stratum, a stretch of rows."""
    log, mean = logs.copy(), means.copy()
    for start in range(0, len(logs), BLOCK_ROWS):
        block = slice(max(start - 1, 0), start + BLOCK_ROWS)  # the row before it has its sum by now
        log[block], mean[block] = _run(log[block], mean[block], strata[block])
    return log, mean


def _run(logs: np.ndarray, means: np.ndarray, strata: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some rows at a time are summed by a triangle of weights, each relative to its own largest.

    Then the same is done for the last rows of these groups, which the next groups go on from.
    """
    rows, width = means.shape
    padding = (0, -rows % FAN)
    means = np.pad(means, (padding, (0, 0))).reshape(-(-rows // FAN), FAN, width)
    strata = np.pad(strata, padding, constant_values=-2).reshape(-1, FAN)
    before = np.tri(FAN, dtype=bool) & (strata[:, :, None] == strata[:, None, :])
    terms = np.where(before, np.pad(logs, padding).reshape(-1, 1, FAN), -np.inf)
    top = terms.max(2)
    risks = np.exp(terms - top[:, :, None])
    sums = risks.sum(2)
    log, mean = top + np.log(sums), risks @ means / sums[:, :, None]
    if len(log) > 1:
        carried, carried_mean = _run(log[:, -1], mean[:, -1], strata[:, -1])
        carried = np.where(strata[1:] == strata[:-1, -1:], carried[:-1, None], -np.inf)
        joined = np.logaddexp(log[1:], carried)
        mean[1:] += np.exp(carried - joined)[:, :, None] * (carried_mean[:-1, None] - mean[1:])
        log[1:] = joined
    return log.reshape(-1)[:rows], mean.reshape(log.size, width)[:rows]


def smaller_and_equal(keys: np.ndarray, bounds: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each bound, how many of the first `among` keys are smaller, and how many equal; all are whole numbers.

    A wavelet matrix: from the highest bit down, keys are parted by it and keep their order otherwise, and each bound
    follows those that agree with it so far.
    """
    first, last = np.zeros_like(among), among
    smaller = np.zeros_like(among)
    for bit in reversed(range(int(keys.max(initial=0)).bit_length())):
        high = (keys >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~high)])
        taken = (bounds >> bit) & 1 == 1
        smaller += np.where(taken, zeros[last] - zeros[first], 0)
        first, last = (np.where(taken, zeros[-1] + end - zeros[end], zeros[end]) for end in (first, last))
        keys = np.concatenate([keys[~high], keys[high]])
    return smaller, last - first
