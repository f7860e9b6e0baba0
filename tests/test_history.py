"""What a run leaves behind: it predicts, pickles, and comes back from a folder without anybody's data."""

import hashlib
import io
import json
import os
import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedlap
from drawn import FOUR, federation
from fedlap.engines.scores import Metrics
from fedlap.errors import ConfigError, DataError
from fedlap.models import blueprint
from fedlap.models.network import Dense, Dropout, Flatten, Network
from fedlap.run import saved

MODEL = fedlap.logistic(bias=True)
NEW = np.random.default_rng(1).normal(size=(5, FOUR.features))


def simulate(algorithm=None, model=MODEL, **options):
    drawn = federation(4, FOUR, overlap=True)
    watch = {"a/b": (drawn.test_inputs[:4], drawn.test_labels[:4])}
    options = {"solver": fedlap.newton(), "rounds": 2, "watch": watch} | options
    return fedlap.simulate(algorithm or fedlap.FedLapCov(delta=1.0), drawn, model, **options)


@pytest.fixture(scope="module")
def history():
    return simulate()


def assert_same(found, wanted):
    """All that a history has to show."""
    assert repr(found) == repr(wanted) and (found.diverged, found.diverged_since) == (wanted.diverged, None)
    for name in (*Metrics._fields, "seconds"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert list(found.watched) == list(wanted.watched)
    for name, metrics in wanted.watched.items():
        np.testing.assert_array_equal(found.watched[name], metrics)
    assert found.final.w.dtype == wanted.final.w.dtype
    np.testing.assert_array_equal(found.final.w, wanted.final.w)
    np.testing.assert_array_equal(found.final.S, wanted.final.S)
    assert list(found.weights) == list(wanted.weights)
    np.testing.assert_array_equal(found.predict(NEW), wanted.predict(NEW))


# The weights --------------------------------------------------------------------------------------------------------


def test_weights_have_names_shapes_and_the_order_of_the_flat_ones(history):
    weights, tree = history.weights, history.state.server.w.tree
    assert {name: array.shape for name, array in weights.items()} == {"1.bias": (2,), "1.weight": (2, FOUR.features)}
    np.testing.assert_array_equal(weights["1.weight"], tree[1]["weight"])
    np.testing.assert_array_equal(np.concatenate([array.ravel() for array in weights.values()]), history.final.w)
    np.testing.assert_array_equal(history.final.w, ravel_pytree(tree)[0])
    np.testing.assert_array_equal(history.final.w[:2], tree[1]["bias"])  # as `Final` says: biases first
    logits = NEW @ weights["1.weight"].T + weights["1.bias"]
    np.testing.assert_allclose(history.predict(NEW), jax.nn.softmax(logits), rtol=1e-10)


def test_no_weight_is_lost_to_a_name_that_two_have():
    vector = fedlap.Vector({"a.b": np.zeros(1), "a": {"b": np.ones(1)}})
    assert len(vector.named) == 2
    assert list(fedlap.Vector({"a": {"b": np.ones(1)}}).named) == ["a.b"]


def test_the_state_shows_its_numbers(history):
    server = history.state.server
    np.testing.assert_array_equal(np.asarray(server.w), history.final.w)
    np.testing.assert_array_equal(np.asarray(server.S), history.final.S)
    assert np.asarray(server.w, np.float32).dtype == np.float32
    assert "1.bias" in repr(server.w) and f"{float(server.w.tree[1]['bias'][0]):.4f}" in repr(server.w)
    assert np.asarray(server.S).shape == (8,)
    full = fedlap.algebra.precision.Full(jnp.eye(2))
    assert np.asarray(full).shape == (2, 2) and np.asarray(fedlap.algebra.precision.Isotropic(3.0)) == 3
    v = history.state.clients.factor.v
    np.testing.assert_array_equal(v.rows[1], ravel_pytree(jax.tree.map(lambda leaf: leaf[1], v.tree))[0])


# Predictions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (
            np.where(np.arange(3) == 1, np.nan, NEW[:2]),
            DataError,
            "inputs, row 0, column 1: input is nan; expected a fin",
        ),
        ([[0, 0, 0], [0, 0, -np.inf]], DataError, "inputs, row 1, column 2: input is -inf; expected a finite number"),
        ([["a", "b", "c"]], DataError, "inputs: values of type <U1; expected real numbers"),
        ([["1", "2", "3"]], DataError, "inputs: values of type <U1"),
        (NEW[0], DataError, r"inputs: inputs of shape \(3,\); expected one row"),
        (NEW[:, :2], DataError, r"inputs has rows of shape \(2,\) but the clients' pool has rows of shape \(3,\)"),
    ],
)
def test_inputs_that_cannot_be_predicted_for_are_refused(history, bad, error, message):
    with pytest.raises(error, match=message):
        history.predict(bad)


def test_numbers_of_any_kind_are_predicted_for(history):
    whole = NEW.round().astype(int)
    for same in (whole, whole.tolist(), whole.astype(np.float32), jnp.asarray(whole)):
        np.testing.assert_array_equal(history.predict(same), history.predict(whole.astype(float)))


def test_what_is_too_large_for_the_precision_is_refused(history, tmp_path):
    history.save(tmp_path / "run")
    description = tmp_path / "run" / saved.DESCRIPTION
    description.write_text(description.read_text().replace("float64", "float32"))
    with pytest.raises(DataError, match="inputs, row 0, column 0: input is inf"):
        fedlap.load(tmp_path / "run").predict([[1e300, 0, 0]])


# Pickle and the folder ----------------------------------------------------------------------------------------------


def test_a_history_pickles_without_the_data(history):
    content = pickle.dumps(history)
    found = pickle.loads(content)
    assert_same(found, history)
    assert found.simulation is None and history.simulation is not None
    row = history.simulation.federation.inputs[0].tobytes()
    assert row in pickle.dumps(history.simulation.federation.inputs) and row not in content
    np.testing.assert_array_equal(found.state.clients.factor.v.rows, history.state.clients.factor.v.rows)


def test_a_history_with_clients_one_by_one_pickles():
    found = pickle.loads(pickle.dumps(simulate(fedlap.FedAvg(), rounds=1, engine="sequential")))
    assert found.predict(NEW).shape == (5, 2) and len(found.state.clients) == 4


class Listed(nn.Module):
    """One that cannot be compared by value."""

    widths: list

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.widths[0])(x)


def test_a_pickled_module_is_not_known_by_a_number_of_another_process():
    model = fedlap.models.as_model(Listed([2]))
    again = pickle.loads(pickle.dumps(model))
    assert again != model and again == fedlap.models.as_model(again.module)


def test_a_history_saves_and_loads(history, tmp_path):
    history.save(tmp_path / "deep" / "run")
    found = fedlap.load(tmp_path / "deep" / "run")
    assert_same(found, history)
    assert found.state is None and found.simulation is None
    assert sorted(path.name for path in (tmp_path / "deep").rglob("*")) == ["arrays.npz", "history.json", "run"]
    found.save(tmp_path / "again")
    assert_same(fedlap.load(tmp_path / "again"), history)


def test_a_saved_history_has_nothing_of_the_clients(history, tmp_path):
    history.save(tmp_path / "run")
    with np.load(tmp_path / "run" / saved.ARRAYS, allow_pickle=False) as file:
        shapes = {name: file[name].shape for name in file.files}
    assert shapes == {
        **dict.fromkeys(("seconds", *(f"{of}{name}" for of in ("", "watched.0.") for name in Metrics._fields)), (2,)),
        "weights.1.bias": (2,),
        "weights.1.weight": (2, 3),
        "S": (8,),
        "precision": (8,),
    }
    content = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert not any(row.tobytes() in content for row in history.simulation.federation.inputs)
    assert not any(name.encode() in content for name in history.simulation.federation.clients)


NETWORKS = {
    "logistic": fedlap.logistic(),
    "mlp": fedlap.mlp(hidden=(4,), activation="tanh"),
    "zenke_cnn": fedlap.zenke_cnn(),
    "acar_cnn": fedlap.acar_cnn(),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_rebuilt_from_their_description(name):
    description = json.loads(json.dumps(blueprint.describe(NETWORKS[name])))
    assert blueprint.rebuild(description) == NETWORKS[name]


def test_what_has_no_description():
    class Other(Network):
        pass

    assert blueprint.describe(Other((Flatten(),))) is None
    assert blueprint.describe(Network((Flatten(), Dense(draw=lambda *_: jnp.zeros(3))))) is None
    assert blueprint.describe(Network((Flatten(), Dropout))) is None
    assert blueprint.describe(fedlap.Model(init, apply)) is None


def init(key, inputs):
    return jnp.zeros((2, inputs.shape[1]))


def apply(params, inputs):
    return inputs @ params.T


def test_a_model_of_functions_is_passed_again(tmp_path):
    history = simulate(fedlap.FedAvg(), fedlap.Model(init, apply), rounds=1)
    history.save(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run: its model is not made of fedlap's layers; pass it: .*model="):
        fedlap.load(tmp_path / "run")
    found = fedlap.load(tmp_path / "run", model=fedlap.Model(init, apply))
    assert_same(found, history)
    assert found.final.S is None
    with pytest.raises(DataError, match=r"arrays\.npz: its weights are .*expected those of the model, .*1\.weight"):
        fedlap.load(tmp_path / "run", model=fedlap.logistic())


def test_a_flax_module_is_passed_again(tmp_path):
    history = simulate(fedlap.FedAvg(), nn.Dense(2), rounds=1)
    history.save(tmp_path / "run")
    assert set(history.weights) == {"params.kernel", "params.bias"}
    assert_same(fedlap.load(tmp_path / "run", model=nn.Dense(2)), history)


def test_another_likelihood_is_passed_again(history, tmp_path):
    history.save(tmp_path / "run")
    description = tmp_path / "run" / saved.DESCRIPTION
    description.write_text(description.read_text().replace("Categorical", "Ordinal"))
    with pytest.raises(ConfigError, match=r"its likelihood is Ordinal; pass it: .*likelihood="):
        fedlap.load(tmp_path / "run")


def test_nothing_is_overwritten(history, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("run", "file"):
        with pytest.raises(DataError, match=f"{name}: exists already"):
            history.save(tmp_path / name)
    with pytest.raises(DataError, match="file/run: cannot be made"):
        history.save(tmp_path / "file" / "run")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "run"]


@pytest.mark.parametrize("victim", ["os.rename", "os.fsync", "json.dumps"])
def test_a_crash_leaves_nothing(history, tmp_path, victim, monkeypatch):
    def crash(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(victim, crash)
    with pytest.raises(OSError, match="disk is full"):
        history.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


DAMAGE = {
    "no description": (lambda folder: (folder / saved.DESCRIPTION).unlink(), r"history\.json: cannot be read"),
    "no arrays": (lambda folder: (folder / saved.ARRAYS).unlink(), r"arrays\.npz: cannot be read"),
    "no JSON": (lambda folder: (folder / saved.DESCRIPTION).write_text('{"format": 1,'), r"history\.json: not JSON"),
    "a list": (
        lambda folder: (folder / saved.DESCRIPTION).write_text("[]"),
        r"history\.json: a history of format None",
    ),
    "little": (
        lambda folder: (folder / saved.DESCRIPTION).write_text('{"format": 1}'),
        r"history\.json: not a saved hist",
    ),
    "new": (lambda folder: edit(folder, format=2), "a history of format 2; this fedlap reads format 1"),
    "cut": (lambda folder: cut(folder / saved.ARRAYS), r"arrays\.npz: not the file that history\.json was written for"),
    "text": (lambda folder: replace_arrays(folder, b"0.5, 0.6"), r"arrays\.npz: not a file of arrays"),
    "pickle": (lambda folder: replace_arrays(folder, trapped()), r"arrays\.npz: not a file of arrays .*allow_pickle"),
    "layer": (lambda folder: edit(folder, model=[{"layer": "Magic"}]), r"history\.json: not a saved history"),
    "model": (lambda folder: edit(folder, model=3), r"history\.json: not a saved history"),
    "shape": (lambda folder: edit(folder, shape=[4]), r"arrays\.npz: its weights are"),
    "dtype": (lambda folder: edit(folder, dtype="many"), r"history\.json: not a saved history"),
    "watched": (lambda folder: edit(folder, watched=["a", "b"]), r"history\.json: not a saved history"),
}


def replace_arrays(folder, content):
    """By something else that the description then vouches for."""
    (folder / saved.ARRAYS).write_bytes(content)
    edit(folder, sha256=hashlib.sha256(content).hexdigest())


class Trap:
    """Unpickling it ends the process."""

    def __reduce__(self):
        return os._exit, (1,)


def trapped():
    content, trap = io.BytesIO(), np.empty(1, object)
    trap[0] = Trap()
    np.savez(content, accuracy=trap)
    return content.getvalue()


def edit(folder, **changes):
    path = folder / saved.DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(history, tmp_path, damage):
    history.save(tmp_path / "run")
    change, message = DAMAGE[damage]
    change(tmp_path / "run")
    with pytest.raises(DataError, match=message):
        fedlap.load(tmp_path / "run")


def test_a_model_of_a_precision_that_this_process_lacks_is_shown_but_does_not_predict(history, tmp_path):
    history.save(tmp_path / "run")
    with jax.enable_x64(False):
        found = fedlap.load(tmp_path / "run")
        np.testing.assert_array_equal(found.final.w, history.final.w)
        with pytest.raises(ConfigError, match="the model is in float64, which JAX has with JAX_ENABLE_X64=1 only"):
            found.predict(NEW)
