"""Partitions: what each promises, for any labels."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlap.data import dirichlet, homogeneous, label_rate, natural, two_classes_per_client
from fedlap.errors import ConfigError

RANDOM = np.random.default_rng

class_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)
concentrations = st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1.0, 10.0, 1e15, 1e300])


def labels_of(sizes, seed=0):
    return RANDOM(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def counts_of(labels, rows, classes):
    return np.array([np.bincount(labels[part], minlength=classes) for part in rows])


@settings(max_examples=100, deadline=None)
@given(class_sizes, st.integers(1, 12), concentrations, concentrations, st.integers(0, 1000))
def test_dirichlet_gives_every_point_to_exactly_one_client_and_no_client_nothing(sizes, clients, a, b, seed):
    labels = labels_of(sizes)
    if len(labels) < clients:
        with pytest.raises(ConfigError, match=f"{len(labels)} points for {clients} clients"):
            dirichlet(a, b)(labels, clients, RANDOM(seed))
        return
    rows = dirichlet(sizes=a, classes=b)(labels, clients, RANDOM(seed))
    assert len(rows) == clients
    assert min(map(len, rows)) >= 1
    assert np.sort(np.concatenate(rows)).tolist() == list(range(len(labels)))
    again = dirichlet(sizes=a, classes=b)(labels, clients, RANDOM(seed))
    assert all(np.array_equal(one, two) for one, two in zip(rows, again, strict=True))


def test_dirichlet_depends_on_the_seed():
    labels = labels_of([50, 50])
    first, second = (dirichlet()(labels, 4, RANDOM(seed)) for seed in (0, 1))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(5, 40), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 1000))
def test_dirichlet_of_huge_concentrations_is_homogeneous(sizes, clients, seed):
    labels = labels_of(sizes)
    rows = dirichlet(sizes=1e15, classes=1e15)(labels, clients, RANDOM(seed))
    counts = counts_of(labels, rows, len(sizes))
    assert np.abs(counts - np.array(sizes) / clients).max() <= 1


def test_dirichlet_follows_the_two_stage_formula():
    # The same formula by numpy's own Dirichlet variables; the two must agree in mean and variance.
    draws, points, clients = 3000, 2000, 3
    labels = np.repeat([0, 1], points)
    ours = np.empty((draws, clients, 2))
    formula = np.empty((draws, clients, 2))
    rng = RANDOM(0)
    for draw in range(draws):
        ours[draw] = counts_of(labels, dirichlet(sizes=0.7, classes=0.4)(labels, clients, rng), 2) / points
        weights = rng.dirichlet([0.7] * clients)[:, None] * rng.dirichlet([0.4] * 2, size=clients)
        formula[draw] = weights / weights.sum(axis=0)
    np.testing.assert_allclose(ours.mean(axis=0), formula.mean(axis=0), atol=0.035)
    np.testing.assert_allclose(ours.var(axis=0), formula.var(axis=0), rtol=0.08)


def test_dirichlet_of_small_class_concentration_gives_clients_few_classes():
    labels = np.repeat(np.arange(10), 600)
    spread = {
        classes: np.mean(
            [
                (counts_of(labels, dirichlet(1e15, classes)(labels, 10, RANDOM(seed)), 10) > 20).sum(axis=1).mean()
                for seed in range(20)
            ]
        )
        for classes in (0.05, 0.5, 1e15)
    }
    assert spread[0.05] < 3 < spread[0.5] < 8 and spread[1e15] == 10


def test_the_papers_split_is_as_uneven_as_the_paper_says():
    # "two clients hold about half of the data, six about 90 %"
    labels = np.repeat(np.arange(10), 600)
    sizes = np.array([[len(part) for part in dirichlet()(labels, 10, RANDOM(seed))] for seed in range(200)])
    held = np.sort(sizes, axis=1)[:, ::-1].cumsum(axis=1).mean(axis=0) / 6000
    assert 0.38 < held[1] < 0.55 and 0.82 < held[5] < 0.93


@settings(max_examples=100, deadline=None)
@given(class_sizes, st.integers(1, 12), st.integers(0, 1000))
def test_homogeneous_differs_by_at_most_one_point_in_all_and_in_each_class(sizes, clients, seed):
    labels = labels_of(sizes)
    if len(labels) < clients:
        with pytest.raises(ConfigError, match="expected at least one point for each"):
            homogeneous()(labels, clients, RANDOM(seed))
        return
    rows = homogeneous()(labels, clients, RANDOM(seed))
    counts = counts_of(labels, rows, len(sizes))
    assert np.sort(np.concatenate(rows)).tolist() == list(range(len(labels)))
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert np.ptp(counts, axis=0).max() <= 1


def test_homogeneous_depends_on_the_seed():
    labels = labels_of([50, 50])
    first, second = (homogeneous()(labels, 4, RANDOM(seed)) for seed in (0, 1))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_label_rate_gives_exactly_the_counts(counts, spare, seed):
    labels = labels_of(np.sum(counts, axis=0) + spare)
    partition = label_rate(counts=counts)
    rows = partition(labels, len(counts), RANDOM(seed))
    assert counts_of(labels, rows, 3).tolist() == counts
    assert len(np.unique(np.concatenate(rows))) == np.sum(counts)


def test_label_rate_draws_other_points_with_another_seed():
    labels = labels_of([50, 50])
    first, second = (label_rate(counts=((20, 5), (10, 30)))(labels, 2, RANDOM(seed)) for seed in (0, 1))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.integers(1, 40), st.integers(1, 6), st.integers(0, 1000))
def test_two_classes_per_client_uses_classes_evenly_and_never_runs_out(classes, clients, points, seed):
    cap = -(-2 * clients // classes)
    labels = labels_of([cap * points] * classes)
    rows = two_classes_per_client(points=points)(labels, clients, RANDOM(seed))
    counts = counts_of(labels, rows, classes)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert set(np.unique(counts)) <= {0, points}
    assert (counts > 0).sum(axis=0).max() <= cap
    assert len(np.unique(np.concatenate(rows))) == 2 * clients * points


def test_two_classes_per_client_shares_a_short_class_equally():
    labels = labels_of([100, 100, 100, 27])
    rows = two_classes_per_client(points=10)(labels, 10, RANDOM(0))
    counts = counts_of(labels, rows, 4)
    short = counts[:, 3][counts[:, 3] > 0]
    assert short.sum() == min(27, 10 * len(short)) and np.ptp(short) <= 1
    assert set(np.unique(counts[:, :3])) == {0, 10}


def test_natural_keeps_the_groups_in_order_of_appearance():
    groups = np.array(["va", "cleveland", "va", "hungarian"])
    rows = natural(groups)(np.zeros(4, int), 3, RANDOM(0))
    assert [part.tolist() for part in rows] == [[0, 2], [1], [3]]
    assert repr(natural(groups)) == "natural(groups=<4 rows in 3 groups>)"


@pytest.mark.parametrize(
    ("partition", "text"),
    [
        (homogeneous(), "homogeneous()"),
        (dirichlet(sizes=2, classes=0.1), "dirichlet(sizes=2, classes=0.1)"),
        (label_rate(counts=[[1, 2], [3, 4]]), "label_rate(counts=((1, 2), (3, 4)))"),
        (two_classes_per_client(points=7), "two_classes_per_client(points=7)"),
    ],
)
def test_a_partition_is_a_value_whose_repr_makes_it_again(partition, text):
    assert repr(partition) == text
    again = eval(text, {kind.__name__: kind for kind in (homogeneous, dirichlet, label_rate, two_classes_per_client)})
    assert again == partition and hash(again) == hash(partition)
    for field in dataclasses.fields(partition):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(partition, field.name, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dirichlet(sizes=0), "dirichlet: sizes is 0; expected a number above 0"),
        (lambda: dirichlet(classes=-1.0), "dirichlet: classes is -1.0; expected"),
        (lambda: dirichlet(classes=float("nan")), "dirichlet: classes is nan; expected"),
        (lambda: dirichlet(classes=float("inf")), "dirichlet: classes is inf; expected"),
        (lambda: dirichlet(sizes="big"), "dirichlet: sizes is 'big'; expected"),
        (lambda: label_rate(counts=()), "expected one row of counts per client"),
        (lambda: label_rate(counts=((1, 2), (3,))), "with one count per class in each"),
        (lambda: label_rate(counts=5), "label_rate: counts is 5; expected one row per client"),
        (
            lambda: label_rate(counts=((1, -2),)),
            "count of class 1 for client 0 is -2; expected a whole number",
        ),
        (
            lambda: label_rate(counts=((1, 2.5),)),
            "count of class 1 for client 0 is 2.5; expected a whole number",
        ),
        (lambda: label_rate(counts=((1, 2), (0, 0))), "label_rate: client 1 gets no points"),
        (lambda: two_classes_per_client(points=0), "points is 0; expected a whole number, 1 or above"),
        (lambda: natural("abc"), "natural: groups is 'abc'; expected one group for each row"),
        (lambda: natural(()), "expected one group for each row"),
    ],
)
def test_a_setting_out_of_range_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (label_rate(counts=((1, 1),)), 2, "label_rate has counts for 1 clients; there are 2 clients"),
        (label_rate(counts=((1, 9),)), 1, "label_rate asks for 9 points of class 1; there are 2"),
        (label_rate(counts=((1, 1, 1),)), 1, "label_rate asks for 1 points of class 2; there are 0"),
        (natural((0, 1)), 2, "natural has groups for 2 rows; there are 4 rows"),
        (natural((0, 1, 1, 0)), 3, "natural has 2 groups; there are 3 clients"),
        (homogeneous(), 0, "clients is 0; expected a whole number, 1 or above"),
        (dirichlet(), 2.5, "clients is 2.5; expected a whole number, 1 or above"),
    ],
)
def test_a_partition_that_does_not_fit_the_data_is_refused(partition, clients, message):
    with pytest.raises(ConfigError, match=message):
        partition(np.array([0, 0, 1, 1]), clients, RANDOM(0))


def test_two_classes_need_two_classes_and_enough_points():
    with pytest.raises(ConfigError, match="all points are of one class"):
        two_classes_per_client()(np.zeros(9, int), 3, RANDOM(0))
    labels = np.array([0, 1, 2, 2, 2, 2])
    with pytest.raises(ConfigError, match=r"too few points, client \d of 6 gets none"):
        two_classes_per_client(points=1)(labels, 6, RANDOM(0))
