"""A run that is lost says so: since when, which method, and what to change; a run that learns is left in peace."""

import math
import warnings
from functools import cache

import numpy as np
import pytest

import fedlap
from drawn import Squared
from fedlap.errors import FedlapError
from fedlap.experiments.results import Curve, Result
from fedlap.models.likelihood import categorical
from fedlap.run.divergence import ignorance, lost_since

TWO, TEN = math.log(2), math.log(10)
LOST, NEWTON = fedlap.FedLapCov(delta=1.0, rho=1.0), fedlap.newton()


@pytest.mark.parametrize(
    ("nll", "nothing", "since"),
    [
        ([0.65, 203, 215], TWO, 2),
        ([0.65, 203, 215, 180], TWO, 2),  # it swings
        ([0.34, 0.5, 21.7, 1.05, 109, 1.8, 133, 1.9], TWO, 5),  # out of a better round and back to a bad one
        ([5e29], TWO, 1),
        ([5e29, 4e29, 6e29], TWO, 1),
        ([0.4, 0.5, 2.5, 4, 7, 6], TWO, 3),
        ([8, 17, 16, 24, 18, 23], TWO, 1),
        ([0.5, math.nan, math.nan], TWO, 2),
        ([0.5, math.inf, 0.6], TWO, 2),
        ([0.5, None, None], TWO, 2),
        ([2.2, 9, 12, 15], TEN, 2),
        ([0.004, 6e-5, 6.3, 0.14, 1e-4, 4.6, 0.14, 1e-4], TWO, 3),  # round in circles
        ([2e-4, 1e-5, 1.16, 0.17, 2e-3, 1e-5, 0.13], TWO, 3),  # in smaller ones, of data that can be separated
        ([0.01, 1e-5, 1e-6, 1e-6, 1e-6, 39.5, 0.08, 0.06, 0.02, 0.004], TWO, 6),  # not back where it was
    ],
)
def test_a_run_that_gets_worse_than_knowing_nothing_is_lost(nll, nothing, since):
    assert lost_since(nll, nothing) == since


@pytest.mark.parametrize(
    ("nll", "nothing"),
    [
        ([12, 9, 6, 3, 1, 0.5], TEN),  # raw pixels
        ([12, 9, 8.5], TEN),  # the same, not yet done
        ([400, 0.9], TWO),
        ([1000, 400, 0.9], TWO),
        ([0.4, 0.5, 0.6, 0.7, 0.8, 0.9], TWO),  # a network too sure of itself, right about most rows
        ([0.5, 0.6, 3.0, 0.6], TWO),  # one bad round
        ([0.5, 0.6, 8.0], TWO),
        ([0.6, 4, 0.6, 0.6, 0.6, 4, 0.6, 0.6], TWO),  # bad rounds of a run that knows little
        ([0.1, 0.1, 0.1, 0.1, 8, 0.4, 0.3, 0.2, 0.12], TWO),  # back again
        ([0.5, 9, 6, 4, 3], TWO),  # on its way back
        ([2.3], TEN),
        ([203, 215], math.inf),  # of another likelihood nobody knows what a bad value is
    ],
)
def test_a_run_that_learns_is_not(nll, nothing):
    assert lost_since(nll, nothing) is None


def test_of_another_likelihood_nobody_knows_what_knowing_nothing_costs():
    assert ignorance(categorical, 10) == TEN and ignorance(Squared(), 10) == math.inf


@cache
def correlated():
    """Five clients of 40 rows, whose features have a correlation of 0.9: a diagonal knows too little of their sum."""
    rng, features = np.random.default_rng(0), 10
    root = np.linalg.cholesky(np.full((features, features), 0.9) + 0.1 * np.eye(features))
    truth = rng.normal(size=features)

    def rows(n):
        x = rng.normal(size=(n, features)) @ root.T
        return x, (x @ truth + rng.normal(size=n) > 0).astype(int)

    return fedlap.Federation.from_arrays(clients=[rows(40) for _ in range(5)], test=rows(200))


def simulate(algorithm=LOST, solver=NEWTON, rounds=8, **options):
    return fedlap.simulate(algorithm, correlated(), fedlap.logistic(), solver=solver, rounds=rounds, **options)


def test_simulate_warns_with_the_round_the_method_and_what_to_change():
    words = r"FedLapCov diverged: from round \d on its test NLL \(\d+ in round \d\) is far worse than 0\.693, .*; "
    with pytest.warns(
        fedlap.DivergedWarning, match=words + r'try rho=evenly, covariance="full" or a larger delta$'
    ) as w:
        history = simulate()
    assert len(w) == 1 and w[0].filename == __file__  # the caller's line, not one of fedlap's
    assert history.diverged and np.isfinite(history.nll).all() and history.nll[-1] > 100
    assert history.nll[history.diverged_since - 1] > 3 * TWO > history.nll[0]


def test_what_it_says_to_change_helps():
    for better in (fedlap.FedLapCov(delta=1.0), fedlap.FedLapCov(delta=1.0, rho=1.0, covariance="full")):
        history = simulate(better)
        assert not history.diverged and history.nll[-1] < TWO


def test_a_huge_learning_rate_is_recognised_in_one_round():
    with pytest.warns(fedlap.DivergedWarning, match=r"FedAvg diverged: .*; try a smaller learning rate$"):
        history = simulate(fedlap.FedAvg(), fedlap.adam(learning_rate=1e30), rounds=1)
    assert history.diverged and np.isfinite(history.nll).all()


def test_what_is_not_finite_is_recognised():
    with pytest.warns(
        fedlap.DivergedWarning, match=r"FedAvg diverged: in round 1 its test NLL is not finite; try a sm"
    ):
        history = simulate(fedlap.FedAvg(), fedlap.adam(learning_rate=1e308), rounds=1)
    assert history.diverged


def test_it_may_be_raised_or_ignored():
    with pytest.raises(fedlap.DivergedError, match="FedLapCov diverged: from round") as caught:
        simulate(on_divergence="raise")
    assert isinstance(caught.value, FedlapError) and issubclass(fedlap.DivergedWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simulate(on_divergence="ignore").diverged
        assert not simulate(rounds=1).diverged
    with pytest.raises(fedlap.ConfigError, match=r"on_divergence is 'rise'; expected \"warn\", \"raise\", \"ignore\""):
        simulate(on_divergence="rise")


def test_a_grid_says_how_many_and_which():
    settings = [(fedlap.FedLapCov(delta=1.0, rho=rho), fedlap.newton()) for rho in (0.2, 1.0)]
    grid = lambda **options: fedlap.simulate_grid(
        settings, correlated(), fedlap.logistic(), rounds=8, seeds=[0, 1], **options
    )
    words = r"2 of 4 runs diverged; setting 1, seed 0: FedLapCov diverged: from round \d on .* try rho=evenly"
    with pytest.warns(fedlap.DivergedWarning, match=words) as caught:
        histories = grid()
    assert len(caught) == 1 and caught[0].filename == __file__
    assert {place for place, history in histories.items() if history.diverged} == {(1, 0), (1, 1)}
    with pytest.raises(fedlap.DivergedError, match=words):
        grid(on_divergence="raise")
    with pytest.raises(fedlap.ConfigError, match="on_divergence is None"):
        grid(on_divergence=None)


def test_a_result_of_a_sweep_records_it():
    class Cell:
        digest = algorithm = ""
        setting, seed, held_out, revision = {}, 0, 0.2, 1

        class spec:
            as_dict = staticmethod(dict)

    of = lambda *nlls: (
        Result.of(Cell, {str(i): Curve([0.5] * 4, nll) for i, nll in enumerate(nlls)}, 1.0, classes=2).diverged
    )
    fine, lost = [0.6, 0.5, 0.4, 0.4], [0.6, 3.0, 8.0, 15.0]
    assert (of(fine), of(fine, lost), of(fine, [0.6, 0.5, None, None])) == (False, True, True)
