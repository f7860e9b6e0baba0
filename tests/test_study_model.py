"""The fitted model on disk: written, read back, refused when anything in it is off, and used to predict."""

import csv
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load, save
from typer.testing import CliRunner

import predictive_oracle as oracle
from fedlap.algebra.precision import Diagonal, Full
from fedlap.algebra.vector import Vector
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.study import model as fitted
from fedlap.study.table import encoding, table
from studies import FILE, write
from study_models import POOLED, SETTINGS, save_model, weights


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path)


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(np.array_equal(a, b) for a, b in pairs)


def test_a_model_comes_back_bit_for_bit_with_its_card(model):
    loaded = fitted.load(model)
    assert same(loaded.weights, weights())
    assert loaded.precision is None
    assert loaded.study.digest == SETTINGS.digest == loaded.card["digest"]
    assert loaded.features == encoding.features(SETTINGS)
    assert loaded.card["rounds"] == 20 and loaded.card["versions"]["jax"] == jax.__version__
    assert all(np.array_equal(a, b) for a, b in zip(loaded.pooled, POOLED, strict=True))
    assert sorted(path.name for path in model.iterdir()) == ["card.json", "model.safetensors"]


def test_both_kinds_of_precision_come_back(tmp_path):
    size = Vector(weights()).size
    matrix = np.random.default_rng(0).normal(size=(size, size))
    for precision in (Diagonal(Vector(weights(1))), Full(matrix)):
        folder = fitted.save(tmp_path / type(precision).__name__, SETTINGS, POOLED, weights(), precision)
        assert same(fitted.load(folder).precision, precision)


def test_saving_again_replaces_the_model_and_a_diverged_one_is_not_saved(model):
    fitted.save(model, SETTINGS, POOLED, weights(1))
    assert same(fitted.load(model).weights, weights(1))
    with pytest.raises(DataError, match="not finite"):
        fitted.save(model, SETTINGS, POOLED, jax.tree.map(lambda leaf: leaf * np.nan, weights()))
    with pytest.raises(ConfigError, match=r"'digest'.*writes itself"):
        fitted.save(model, SETTINGS, POOLED, weights(), card={"digest": "mine"})
    assert same(fitted.load(model).weights, weights(1))


def change_arrays(folder, function):
    """Change the arrays, and the hash in the card with them, so that only their own check can find it."""
    import hashlib

    content = save(function(load((folder / "model.safetensors").read_bytes())))
    (folder / "model.safetensors").write_bytes(content)
    change_card(folder, lambda card: card.update(sha256=hashlib.sha256(content).hexdigest()))


def change_card(folder, function):
    card = json.loads((folder / "card.json").read_text())
    function(card)
    (folder / "card.json").write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda arrays: {name: array[..., :1] for name, array in arrays.items()}, "expected finite numbers of shape"),
        (lambda arrays: {name: array * np.inf for name, array in arrays.items()}, "expected finite numbers of shape"),
        (lambda arrays: {name: array.astype(int) for name, array in arrays.items()}, "is int64"),
        (lambda arrays: dict(list(arrays.items())[1:]), "is missing; expected"),
        (lambda arrays: {**arrays, "extra": np.zeros(2)}, "'extra'.*does not have"),
        (lambda arrays: {**arrays, "precision.matrix": np.eye(3)}, "precision.matrix is float64 .3, 3.; expected"),
    ],
)
def test_arrays_that_do_not_fit_the_study_are_refused(model, function, message):
    change_arrays(model, function)
    with pytest.raises(DataError, match=f"model.safetensors: .*{message}"):
        fitted.load(model)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda card: card.update(format=9), "format 9; this fedlap reads formats 1 and 2"),
        (lambda card: card.pop("study"), "not the card of a model"),
        (lambda card: card["study"]["study"].update(rounds=7), "its digest .*has been changed"),
        (lambda card: card["study"]["study"].update(rounds="many"), "study.rounds is 'many'"),
        (lambda card: card.update(classes=["ill", "well"]), "its classes .*has been changed"),
        (lambda card: card["standardisation"]["columns"]["age"].update(deviation=0.0), "deviations above 0"),
        (lambda card: card["standardisation"]["columns"].pop("age"), "standardisation of"),
        (lambda card: card["standardisation"].update(columns=3), "not the card of a model"),
        (lambda card: card.update(sha256="0"), "not the file that card.json was written for"),
    ],
)
def test_a_card_that_is_not_sound_is_refused(model, function, message):
    change_card(model, function)
    with pytest.raises((DataError, ConfigError), match=message):
        fitted.load(model)


def test_a_folder_that_is_no_model_is_an_error_of_words(tmp_path, model):
    with pytest.raises(DataError, match="expected the folder of a fitted model"):
        fitted.load(tmp_path)
    (model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match="it is damaged"):
        fitted.load(model)
    (model / "card.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        fitted.load(model)


def test_predictions_are_those_of_the_model_on_the_encoded_rows(tmp_path, model):
    path = write(tmp_path, "dose,sex,ward,age\n2,male,surgery,60\n,female,medicine,50\n")
    loaded = fitted.load(model)
    found = loaded.predict(path)
    inputs = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 0, 0]], np.float32)
    (layer,) = [layer for layer in weights() if layer]
    outputs = np.asarray(SETTINGS.method.make_model().apply(weights(), inputs))
    expected = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert layer and found.shape == (2, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(loaded.predict(inputs), found, rtol=1e-6)
    with pytest.raises(DataError, match=r"expected \(rows, 5\)"):
        loaded.predict(inputs[:, :4])


def test_the_command_writes_a_line_for_every_row_and_says_which_have_none(tmp_path, model):
    path = write(tmp_path, FILE + "45,1,medicine,,\n46,1,medicine,male,\n")
    result = CliRunner().invoke(app, ["predict", str(model), str(path), "--output", str(tmp_path / "out.csv")])
    assert result.exit_code == 0, result.output
    with open(tmp_path / "out.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["row", "probability_well", "probability_ill"]
    assert [line[0] for line in lines] == ["2", "3", "4", "5", "6", "7"]
    assert lines[4][1:] == ["", ""] and "1 rows have no prediction" in result.output
    assert all(abs(float(line[1]) + float(line[2]) - 1) < 2e-6 for place, line in enumerate(lines) if place != 4)
    result = CliRunner().invoke(app, ["predict", str(model), str(path), "--output", str(path)])
    assert isinstance(result.exception, ConfigError) and path.read_text().startswith(FILE)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_the_posterior_is_averaged_over_and_its_intervals_are_written(tmp_path, structure):
    size = Vector(weights()).size
    half = np.random.default_rng(0).normal(size=(size, size))
    S = half @ half.T + np.eye(size) if structure == "full" else np.arange(1.0, size + 1)
    kept = Full(np.float32(S)) if structure == "full" else Diagonal(Vector(weights()).like(np.float32(S)))
    model = fitted.save(tmp_path / "model", SETTINGS, POOLED, weights(), kept)
    path = write(tmp_path, "dose,sex,ward,age\n2,male,surgery,60\n,female,medicine,50\n")
    inputs = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 0, 0]])
    J = np.stack([oracle.logistic_jacobian(x, 2) for x in inputs])
    J = J[:, 1] - J[:, 0]
    margin, deviation = J @ np.asarray(Vector(weights()), float), np.sqrt(np.diag(oracle.covariance(J, S)))
    sigmoid = lambda f: 1 / (1 + np.exp(-f))
    wanted = np.stack(
        [
            sigmoid(margin / np.sqrt(1 + np.pi / 8 * deviation**2)),
            *(sigmoid(margin + z * deviation) for z in (-1.6448536269514722, 1.6448536269514722)),
        ],
        1,
    )
    found = fitted.load(model).predict(path, posterior=True, interval=0.9)
    np.testing.assert_allclose(np.stack([part[:, 1] for part in found], 1), wanted, rtol=1e-4)
    command = ["predict", str(model), str(path), "--output", str(tmp_path / "out.csv"), "--posterior"]
    result = CliRunner().invoke(app, [*command, "--interval", "0.9"])
    assert result.exit_code == 0, result.output
    with open(tmp_path / "out.csv", newline="") as file:
        header, *lines = csv.reader(file)
    ends = [f"probability_{name}{end}" for end in ("", "_lower", "_upper") for name in ("well", "ill")]
    assert header == ["row", *ends]
    np.testing.assert_allclose(np.array(lines, float)[:, [2, 4, 6]], wanted, atol=1e-6, rtol=1e-4)
    result = CliRunner().invoke(app, [*command, "--link", "samples", "--samples", "5000", "--seed", "1"])
    assert result.exit_code == 0, result.output
    with open(tmp_path / "out.csv", newline="") as file:
        np.testing.assert_allclose(np.array(list(csv.reader(file))[1:], float)[:, 2], wanted[:, 0], atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--interval", "0.9"], "--interval is of the posterior; expected --posterior too"),
        (["--seed", "0"], "--seed is of the posterior; expected --posterior too"),
        (["--posterior"], "there is no posterior: the algorithm has no precision"),
        (["--observation"], "--observation goes with a regression"),
    ],
)
def test_a_question_that_the_model_cannot_answer_is_refused(tmp_path, model, options, message):
    path = write(tmp_path, "dose,sex,ward,age\n2,male,surgery,60\n")
    result = CliRunner().invoke(app, ["predict", str(model), str(path), "--output", str(tmp_path / "p.csv"), *options])
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert not (tmp_path / "p.csv").exists()


def test_new_patients_are_held_to_the_same_contract(tmp_path, model):
    loaded = fitted.load(model)
    with pytest.raises(DataError, match="row 2, column age: found '500'"):
        loaded.predict(write(tmp_path, "age,dose,ward,sex\n500,1,surgery,male\n"))
    with pytest.raises(DataError, match="column sex: the column is missing"):
        loaded.predict(write(tmp_path, "age,dose,ward\n50,1,surgery\n"))
    with pytest.raises(DataError, match="no rows below the header"):
        loaded.predict(write(tmp_path, "age,dose,ward,sex\n"))
    one = table.check_inputs(SETTINGS, write(tmp_path, "age,dose,ward,sex,outcome\n50,1,surgery,male,whatever\n"))
    assert one.labels is None and len(one) == 1, "the target is not looked at"
