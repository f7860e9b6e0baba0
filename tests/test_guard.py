"""The guard against slower code: when it is certain, and when it is not. Nothing is timed here."""

import math

import numpy as np
import pytest

from benchmarks.guard import DOUBT, LIMIT, doubtful, judge


def machine(rng, turns, ratio):
    """Seconds of both sides on a machine that others use too: it drifts, and now and then somebody is in the way."""
    drift = np.exp(np.cumsum(rng.normal(scale=0.05, size=turns)))
    turn = lambda: drift * rng.gamma(50, 1 / 50, turns) * np.where(rng.random(turns) < 0.2, rng.uniform(1, 5, turns), 1)
    return turn().tolist(), (ratio * turn()).tolist()


@pytest.mark.parametrize("turns", [12, 40, 100])
def test_it_seldom_cries_wolf(turns):
    """At the limit itself one time in twenty, and of the same code hardly ever, before it looks again."""
    rng = np.random.default_rng(turns)
    cries = {ratio: sum(judge(*machine(rng, turns, ratio)).slower for _ in range(1000)) for ratio in (1.0, LIMIT)}
    assert cries[1.0] <= 5
    assert cries[LIMIT] <= 1000 * DOUBT + 3 * math.sqrt(1000 * DOUBT)


@pytest.mark.parametrize(("turns", "ratio"), [(12, 3.0), (40, 1.5), (100, 1.35)])
def test_it_sees_what_is_slower(turns, ratio):
    rng = np.random.default_rng(turns)
    assert sum(judge(*machine(rng, turns, ratio)).slower for _ in range(1000)) > 900


def test_pairs_are_compared_and_not_medians():
    """A machine that gets ten times slower halfway tells nothing about the code."""
    before, now = [1.0] * 20 + [10.0] * 20, [1.2] * 20 + [12.0] * 20
    assert judge(before, now).slower and not judge(now, before).slower
    assert judge(before, now) == pytest.approx((1.2, 1.2, 1.2))


def test_one_pair_more_or_less_decides():
    """Of five turns all have to be slower; with four it is never certain."""
    assert (doubtful(4), doubtful(5), doubtful(8), doubtful(12)) == (0, 1, 2, 3)
    assert not judge([1.0] * 4, [9.0] * 4).slower
    assert judge([1.0] * 5, [9.0] * 5).slower
    assert not judge([1.0] * 5, [9.0] * 4 + [1.15]).slower


@pytest.mark.parametrize("count", [7, 12, 40])
def test_the_bounds_are_those_of_a_fair_coin(count):
    fewer = lambda k: sum(math.comb(count, heads) for heads in range(k)) / 2**count
    assert fewer(doubtful(count)) <= DOUBT < fewer(doubtful(count) + 1)
