"""The Cox partial likelihood again, slowly: one event after the other, as textbooks write it, in O(n²)."""

import numpy as np


def expand(w, x, duration, event, weights=None, offset=None, ties="efron", strata=None):
    """The negative log partial likelihood, its gradient and its Hessian: Therneau and Grambsch, section 3.3."""
    n, width = x.shape
    weights = np.ones(n) if weights is None else weights
    offset = np.zeros(n) if offset is None else offset
    strata = np.zeros(n) if strata is None else strata
    f = x @ w + offset
    loss, gradient, hessian = 0.0, np.zeros(width), np.zeros((width, width))
    for stratum in np.unique(strata):
        for time in np.unique(duration[(event == 1) & (strata == stratum)]):
            risk_set = (strata == stratum) & (duration >= time)
            dying = risk_set & (duration == time) & (event == 1)
            count = dying.sum()
            for place in range(count):
                share = place / count if ties == "efron" else 0.0
                top = f[risk_set].max()
                risk = weights * (risk_set - share * dying) * np.exp(np.where(risk_set, f - top, -np.inf))
                mean = risk @ x / risk.sum()
                around = x - mean
                weight = weights[dying].sum() / count
                loss += weight * (top + np.log(risk.sum()))
                gradient += weight * mean
                hessian += weight * (risk[:, None] * around).T @ around / risk.sum()
            loss -= weights[dying] @ f[dying]
            gradient -= weights[dying] @ x[dying]
    return loss, gradient, hessian


def pairs(f, duration, event, strata):
    """Concordant, tied and comparable pairs, one by one."""
    concordant = tied = comparable = 0
    for i in np.flatnonzero(event):
        for j in np.flatnonzero(strata == strata[i]):
            if duration[j] > duration[i] or (duration[j] == duration[i] and not event[j]):
                comparable += 1
                concordant += f[i] > f[j]
                tied += f[i] == f[j]
    return concordant, tied, comparable
