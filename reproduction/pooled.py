"""What the two-client experiment aims at: logistic regression on all rows together, solved to rounding.

In NumPy and float64, because columns as recorded reach 100,000 and single precision would not resolve 1 %.
"""

from typing import NamedTuple

import numpy as np

STEPS = 200


class PooledOptimum(NamedTuple):
    """Mean NLL of the minimiser of Σ ℓ + ½δ‖w‖² on the training rows and on the test set."""

    train: float
    test: float


def optimum(federation, delta):
    """Two softmax columns w and −w are one logistic column θ = 2w, whose penalty is ¼δ‖θ‖²."""
    rows = np.concatenate(federation.rows)
    inputs, labels = np.float64(federation.inputs[rows]), federation.labels[rows]
    scales = np.abs(inputs).max(axis=0)
    scales[scales == 0] = 1
    scaled, penalty = inputs / scales, delta / 2 / scales**2
    theta = np.zeros(scaled.shape[1])

    def value(theta):
        return len(labels) * _nll(scaled @ theta, labels) + (penalty * theta**2).sum() / 2

    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-scaled @ theta))
        gradient = scaled.T @ (chance - labels) + penalty * theta
        hessian = (scaled.T * (chance * (1 - chance))) @ scaled + np.diag(penalty)
        # One-hot columns of one variable add up to a constant, so without a penalty the Hessian is singular.
        direction, *_ = np.linalg.lstsq(hessian, gradient, rcond=1e-13)
        step = 1.0
        while value(theta - step * direction) > value(theta) and step > 1e-8:
            step /= 2
        theta = theta - step * direction
        if np.abs(step * direction).max() < 1e-12 * (1 + np.abs(theta).max()):
            break
    test = _nll(np.float64(federation.test_inputs) / scales @ theta, federation.test_labels)
    return PooledOptimum(_nll(scaled @ theta, labels), test)


def _nll(outputs, labels):
    return float(np.logaddexp(0, np.where(labels == 1, -outputs, outputs)).mean())
