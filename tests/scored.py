"""The five scores of class probabilities once more, slowly: pair by pair, bin by bin, from their definitions."""

import numpy as np

BINS = 15


def scores(p, labels):
    """Accuracy, NLL, Brier score, ECE and AUC of probabilities [rows, classes]."""
    rows = range(len(labels))
    right = [float(p[i].argmax() == labels[i]) for i in rows]
    nll = [-np.log(p[i, labels[i]]) for i in rows]
    brier = [sum((p[i, c] - (c == labels[i])) ** 2 for c in range(p.shape[1])) for i in rows]
    return np.mean(right), np.mean(nll), np.mean(brier), calibration_error(p.max(1), right), area(p, labels)


def calibration_error(confidence, right):
    """The mean distance between how sure and how often right, a bin weighing as many rows as are in it."""
    distance = 0.0
    for b in range(BINS):
        among = [i for i, c in enumerate(confidence) if b / BINS < c <= (b + 1) / BINS]
        if among:
            distance += len(among) * abs(np.mean([confidence[i] for i in among]) - np.mean([right[i] for i in among]))
    return distance / len(confidence)


def area(p, labels):
    """The share of pairs, a row of each class, that p_1 puts in order; a tie is half a pair."""
    if p.shape[1] != 2:
        return np.nan
    ones, zeros = p[labels == 1, 1], p[labels == 0, 1]
    return np.mean([(one > zero) + 0.5 * (one == zero) for one in ones for zero in zeros])
