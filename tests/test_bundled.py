"""Bundled tables: the publishers' bytes, the paper's rows, and what each preset makes of them."""

import numpy as np
import pytest

from fedlap.data import credit, fetch, heart, verify
from fedlap.data.catalogue import BUNDLED, DATASETS
from fedlap.data.tables import standardise
from fedlap.errors import ConfigError
from mirror import md5

MD5 = {
    "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
    "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
    "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
    "processed.va.data": "4249d03ca7711e84f4444768c9426170",
    "crx.data": "f9ef466328183a973ebefdf65af8a96c",
}


@pytest.mark.parametrize("file", MD5)
def test_bundled_files_are_the_publishers_bytes(file):
    assert md5((BUNDLED / file).read_bytes()) == MD5[file]


def test_bundled_data_sets_verify_and_need_no_fetching():
    assert verify("credit") == [(str(BUNDLED / "crx.data"), "ok")]
    assert [status for _, status in verify("heart")] == ["ok"] * 4
    assert fetch("heart") == BUNDLED


def test_the_attribution_names_licence_authors_and_dois():
    text = (BUNDLED / "ATTRIBUTION.md").read_text()
    for needed in ("CC BY 4.0", "10.24432/C52P4X", "10.24432/C5FS30", "Quinlan", "Janosi", "Detrano"):
        assert needed in text


@pytest.mark.parametrize("preset", ["paper", "standard"])
def test_heart_has_flambys_hospitals(preset):
    made = heart(preset=preset)
    assert made.clients == ("cleveland", "hungarian", "switzerland", "va")
    assert made.sizes.tolist() == [199, 172, 30, 85]
    assert (made.inputs.shape, made.test_inputs.shape, made.classes) == ((486, 13), (254, 13), 2)
    rates = made.class_counts[:, 1] / made.sizes
    assert rates.round(2).tolist() == [0.46, 0.38, 1.00, 0.78]


def test_heart_in_the_papers_preset_is_as_recorded():
    made = heart(preset="paper")
    # The first record of the Cleveland file, which is a training row: age 63, male, chest pain 1, rest ECG 2.
    assert made.of("cleveland")[0][0].tolist() == [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]
    assert made.of("cleveland")[1][0] == 0
    assert made.of("switzerland")[0][:, 3].max() == 0


def test_heart_in_the_standard_preset_is_scaled_by_the_training_rows_of_all_hospitals():
    raw, scaled = heart(preset="paper"), heart(preset="standard")
    np.testing.assert_allclose(scaled.inputs.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.inputs.std(axis=0), 1)
    # Test rows are scaled with training statistics, not with their own.
    expected = (raw.test_inputs - raw.inputs.mean(axis=0)) / raw.inputs.std(axis=0)
    np.testing.assert_allclose(scaled.test_inputs, expected)
    # Hospitals keep what sets them apart: nobody recorded cholesterol in Switzerland.
    assert scaled.of("switzerland")[0][:, 3].max() < -1


def test_a_column_that_is_constant_in_training_is_centred_and_not_blown_up():
    train, test = standardise(np.array([[5.0, 1.0], [5.0, 3.0]]), np.array([[7.0, 4.0]]))
    assert train.tolist() == [[0, -1], [0, 1]] and test.tolist() == [[2, 2]]


def split_by_scikit_learn(file, skip, dropped, **options):
    """Which complete rows of a file are test rows, with scikit-learn's split computed anew."""
    selection = pytest.importorskip("sklearn.model_selection")
    lines = (BUNDLED / file).read_text().split()[skip:]
    rows = [np.delete(line.split(","), dropped) for line in lines]
    rows = np.array([row for row in rows if "?" not in row])
    positive = np.isin(rows[:, -1], ["1", "2", "3", "4", "+"]).astype(int)
    stratify = positive if np.bincount(positive, minlength=2).min() > 2 else None
    train, test = selection.train_test_split(np.arange(len(rows)), stratify=stratify, shuffle=True, **options)
    return rows, positive, np.sort(train), np.sort(test)


def test_hearts_split_is_scikit_learns():
    made = heart(preset="paper")
    start = 0
    for name in made.clients:
        rows, positive, train, test = split_by_scikit_learn(
            f"processed.{name}.data", 0, [10, 11, 12], train_size=0.66, test_size=1 - 0.66, random_state=43
        )
        numeric = rows[:, [0, 1, 3, 4, 5, 7, 8, 9]].astype(float)
        np.testing.assert_array_equal(made.of(name)[0][:, :8], numeric[train])
        np.testing.assert_array_equal(made.of(name)[1], positive[train])
        np.testing.assert_array_equal(made.test_inputs[start : start + len(test), :8], numeric[test])
        np.testing.assert_array_equal(made.test_labels[start : start + len(test)], positive[test])
        start += len(test)
    assert start == 254


def test_credits_split_is_scikit_learns():
    made = credit(preset="paper")
    rows, positive, train, test = split_by_scikit_learn("crx.data", 1, [], test_size=0.2, random_state=1)
    numeric = rows[:, [1, 2, 7, 10, 13, 14]].astype(float)
    np.testing.assert_array_equal(made.inputs[:, 36:], numeric[train])
    np.testing.assert_array_equal(made.labels, positive[train])
    np.testing.assert_array_equal(made.test_inputs[:, 36:], numeric[test])
    np.testing.assert_array_equal(made.test_labels, positive[test])


@pytest.mark.parametrize("preset", ["paper", "standard"])
@pytest.mark.parametrize(
    ("split", "counts"),
    [
        ("heterogeneous", [[34, 2]] * 5 + [[22, 45]] * 5),
        ("homogeneous", [[28, 24]] * 6 + [[28, 23]] * 4),
        ("two_clients", [[142, 118]] * 2),
    ],
)
def test_credit_has_the_papers_counts(preset, split, counts):
    made = credit(preset=preset, split=split, seed=3)
    assert (made.inputs.shape, made.test_inputs.shape) == ((521, 42), (131, 42))
    assert np.bincount(made.labels).tolist() == [285, 236]
    assert made.class_counts.tolist() == counts


def test_credits_seed_moves_records_between_clients_and_nothing_else():
    first, again, other = credit(seed=0), credit(seed=0), credit(seed=1)
    assert first.fingerprint() == again.fingerprint()
    np.testing.assert_array_equal(first.inputs, other.inputs)
    np.testing.assert_array_equal(first.test_inputs, other.test_inputs)
    assert any((a != b).any() for a, b in zip(first.rows, other.rows, strict=True))


def test_credit_in_the_standard_preset_scales_numeric_columns_by_training_rows():
    raw, scaled = credit(preset="paper"), credit(preset="standard")
    np.testing.assert_array_equal(raw.inputs[:, :36], scaled.inputs[:, :36])
    assert set(np.unique(raw.inputs[:, :36])) == {0.0, 1.0}
    train, test = raw.inputs[:, 36:], raw.test_inputs[:, 36:]
    np.testing.assert_allclose(scaled.inputs[:, 36:], (train - train.mean(axis=0)) / train.std(axis=0))
    np.testing.assert_allclose(scaled.test_inputs[:, 36:], (test - train.mean(axis=0)) / train.std(axis=0))
    assert raw.inputs.max() == 100_000


def test_credits_pooled_optimum_is_the_papers():
    # Two logits, no bias, δ = 1 or 10 on all weights: for the logits' difference u, a penalty δ/4 |u|².
    # The paper states a test loss of 0.337 and an accuracy of 90 %.
    made = credit(preset="paper")
    scale = made.inputs.std(axis=0) + 1e-9
    x, xt = made.inputs / scale, made.test_inputs / scale
    loss, accuracy = {}, {}
    for delta in (1.0, 10.0):
        u = np.zeros(42)
        for _ in range(60):
            p = 1 / (1 + np.exp(-x @ u))
            gradient = x.T @ (p - made.labels) + delta / 2 * u / scale**2
            hessian = (x.T * (p * (1 - p))) @ x + np.diag(delta / 2 / scale**2)
            u -= np.linalg.solve(hessian, gradient)
        assert np.abs(gradient).max() < 1e-8
        z = xt @ u
        loss[delta] = np.mean(np.logaddexp(0, z) - made.test_labels * z)
        accuracy[delta] = np.mean((z > 0) == made.test_labels)
    assert loss[1.0] == pytest.approx(0.3365, abs=1e-4)
    assert accuracy[10.0] == pytest.approx(118 / 131)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: heart(preset="standart"),
            r"unknown preset 'standart'; did you mean 'standard'\? \(choices: paper, standard\)",
        ),
        (lambda: credit(preset="raw"), r"unknown preset 'raw' \(choices: paper, standard\)"),
        (lambda: credit(split="even"), r"unknown split 'even' .*heterogeneous, homogeneous, two_clients"),
        (lambda: credit(seed=-1), "seed is -1; expected a whole number, 0 or above"),
        (lambda: fetch("minst"), r"unknown data set 'minst'; did you mean 'mnist'"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_choices(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_catalogue_says_what_a_user_asks():
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.description and dataset.licence and dataset.source
        assert dataset.bundled == (name in ("heart", "credit"))
    assert DATASETS["heart"].bytes == sum((BUNDLED / file).stat().st_size for file in MD5 if file != "crx.data")
    assert DATASETS["cifar10"].bytes == 170_052_171
