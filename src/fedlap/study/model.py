"""The fitted model on disk: arrays in model.safetensors, everything else in card.json, both readable without fedlap.

The card carries the study itself, so that a model can check and encode new patients' files by the same contract.
"""

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from fedlap import files, identity
from fedlap.algebra.precision import Diagonal, Full, Shifted
from fedlap.algebra.vector import Vector
from fedlap.engines.parties import Task
from fedlap.engines.predictive import Averaging, Predicted, probabilities
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.files import read_described, read_description
from fedlap.models.curvature import GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.study.agreement.contract import Study, resolve
from fedlap.study.protocol.coordinator import Outcome
from fedlap.study.protocol.messages import digest, pack
from fedlap.study.protocol.metrics import Score
from fedlap.study.table import encoding
from fedlap.study.table.table import Checked, check_inputs

FORMAT = 2
DIGESTS = {  # of a card's study, by the card's format; the first was of the section as it stands, defaults too
    1: lambda section, study: identity.digest(section),
    2: lambda section, study: study.digest,
}
CARD, ARRAYS, HISTORY, REPORT = "card.json", "model.safetensors", "history.json", "report.html"
OURS = ("format", "study", "digest", "features", "classes", "standardisation", "versions", "sha256")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that has been checked from its files, ready to predict."""

    folder: Path
    study: Study
    pooled: encoding.Pooled
    weights: Any  # the model's own tree of arrays
    precision: Any  # Diagonal, Full, or None where the algorithm has none
    card: dict

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return encoding.features(self.study)

    @overload
    def predict(
        self,
        patients: str | Path | Checked | np.ndarray,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
    ) -> np.ndarray: ...

    @overload
    def predict(
        self,
        patients: str | Path | Checked | np.ndarray,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        interval: float,
    ) -> Predicted: ...

    def predict(
        self,
        patients: str | Path | Checked | np.ndarray,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        interval: float | None = None,
    ) -> np.ndarray | Predicted:
        """Class probabilities [rows, classes] for a file of new patients, a checked one, or encoded inputs.

        With `posterior` they are averaged over it, and the further options are those of `History.predict`.
        """
        classes = len(self.study.target.classes)
        averaging = Averaging.of(posterior, link=link, samples=samples, seed=seed, interval=interval, classes=classes)
        if isinstance(patients, (str, Path)):
            patients = check_inputs(self.study, patients)
        if isinstance(patients, Checked):
            patients, _ = encoding.encode(self.study, patients, self.pooled)
        inputs = np.asarray(patients, np.float32)
        if inputs.ndim != 2 or inputs.shape[1] != len(self.features):
            raise DataError(f"inputs of shape {inputs.shape}; expected (rows, {len(self.features)}), as in `features`")
        task = Task(self.study.method.make_model(), categorical, GaussNewton())
        w = Vector(jax.tree.map(jnp.asarray, self.weights))
        return probabilities(task, w, self.precision, jnp.asarray(inputs), averaging)


def save_outcome(folder: str | Path, study: Study, outcome: Outcome) -> Path:
    """Write what a run of the study has come to: the model, its card, its history, and a report to read."""
    from fedlap.study.report import predictor_page  # whoever loads a model needs none of it

    history = [report.as_dict() for report in outcome.history]
    card = {
        "rounds": len(history),
        "members": outcome.sizes,
        "without": outcome.without,  # who was left out for good, after which round, and how
        "metrics": {name: history[-1].get(name) for name in Score._fields},
        "run": outcome.run,
        "weights_sha256": digest(pack(outcome.server.w)),
    }
    folder = save(folder, study, outcome.pooled, outcome.server.w, outcome.precision, card)
    files.write(folder / HISTORY, json.dumps(history, indent=2) + "\n")
    files.write(folder / REPORT, predictor_page(study, outcome))
    return folder


def save(
    folder: str | Path,
    study: Study,
    pooled: encoding.Pooled,
    weights: Any,
    precision: Any = None,
    card: dict | None = None,
) -> Path:
    """Write a model; `card` adds what the run knows, such as rounds, members and metrics."""
    card, weights = dict(card or {}), weights.tree if isinstance(weights, Vector) else weights
    if taken := set(card) & set(OURS):
        raise ConfigError(f"the card has {sorted(taken)}, which the model writes itself")
    precision = Full(precision.flat) if isinstance(precision, Shifted) else precision
    arrays = _named("weights", weights) | ({} if precision is None else _named("precision", precision))
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise DataError(f"{name} is not finite; a model that has diverged is not saved")
    content = _safetensors().save(arrays)
    standardisation = {
        column.name: {"mean": float(mean), "deviation": float(deviation), "count": int(count)}
        for column, mean, deviation, count in zip(
            encoding.numbers(study), pooled.means, pooled.deviations, pooled.counts, strict=True
        )
    }
    packages = ("fedlap", "jax", "numpy", "safetensors")
    card |= {
        "format": FORMAT,
        "study": study.shared(),
        "digest": study.digest,
        "features": list(encoding.features(study)),
        "classes": list(study.target.classes),
        "standardisation": {"rows": int(pooled.rows), "columns": standardisation},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The card last: it names the hash of the arrays, so a card without its own arrays is found out.
    files.write(folder / ARRAYS, content)
    files.write(folder / CARD, json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    return folder


def load(folder: str | Path) -> Fitted:
    """Read a model and check all of it."""
    folder = Path(folder)
    card = read_description(folder / CARD, DIGESTS, "model", "fitted")
    try:
        study = resolve(card["study"], folder / CARD)
        means, deviations, counts, rows = _standardisation(study, card["standardisation"])
        given = card["digest"], card["features"], card["classes"], card["sha256"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FedlapError):
            raise
        raise DataError(f"{folder / CARD}: not the card of a model ({type(error).__name__}: {error})") from error
    expected = DIGESTS[card["format"]](card["study"], study)
    wanted = expected, list(encoding.features(study)), list(study.target.classes)
    for what, found, expected in zip(("digest", "features", "classes"), given, wanted, strict=False):
        if found != expected:
            raise DataError(f"{folder / CARD}: its {what} are not those of its study; the file has been changed")
    weights, precision = _trees(folder / ARRAYS, study, _arrays(folder / ARRAYS, given[-1]))
    pooled = encoding.Pooled(np.array(rows, np.float64), counts, means, deviations)
    return Fitted(folder, study, pooled, weights, precision, card)


def _arrays(path, sha256):
    """The arrays of a file that its card knows; of a damaged or foreign one the library says what is wrong."""
    library, content = _safetensors(), read_described(path, sha256, CARD)
    try:
        return library.load(content)
    except Exception as error:  # its own errors, and whatever NumPy says of types and shapes that are none
        raise DataError(f"{path}: not a file of arrays ({str(error)[:200]}); expected what a run wrote") from error


def _standardisation(study, table):
    names = [column.name for column in encoding.numbers(study)]
    if set(table["columns"]) != set(names):
        raise ValueError(f"standardisation of {sorted(table['columns'])}; expected {sorted(names)}")
    columns = [table["columns"][name] for name in names]
    arrays = [np.array([float(column[key]) for column in columns]) for key in ("mean", "deviation", "count")]
    if not all(np.isfinite(array).all() for array in arrays) or not (arrays[1] > 0).all():
        raise ValueError("means and deviations must be finite, deviations above 0")
    return *arrays, float(table["rows"])


def _trees(path, study, arrays):
    inputs = jax.ShapeDtypeStruct((1, len(encoding.features(study))), jnp.float32)
    model, classes = study.method.make_model(), len(study.target.classes)
    like = jax.eval_shape(lambda key: model.init(key, inputs, classes), jax.random.key(0))
    trees: dict[str, Any] = {"weights": like, "precision": None}
    if "precision.matrix" in arrays:
        size = Vector(like).size
        trees["precision"] = jax.eval_shape(lambda: Full(jnp.zeros((size, size), jnp.float32)))
    elif any(name.startswith("precision") for name in arrays):
        trees["precision"] = Diagonal(Vector(like))
    expected = {name for prefix, tree in trees.items() for name in _shapes(prefix, tree)}
    if extra := sorted(set(arrays) - expected):
        raise DataError(f"{path}: arrays named {extra}, which the study's model does not have")
    return tuple(_tree(path, prefix, tree, arrays) for prefix, tree in trees.items())


def _tree(path, prefix, like, arrays):
    leaves = []
    for name, shape in _shapes(prefix, like).items():
        array = arrays.get(name)
        if array is None or array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise DataError(f"{path}: {name} is {found}; expected finite numbers of shape {shape}")
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named(prefix, tree):
    """Arrays by their place in the tree, as in weights[1]['kernel']."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.ascontiguousarray(leaf) for path, leaf in leaves}


def _shapes(prefix, like):
    leaves = jax.tree_util.tree_leaves_with_path(like)
    return {prefix + jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ConfigError(
            'models are kept with the package safetensors, which is not installed here: pip install "fedlap[flower]"'
        ) from error
    return safetensors.numpy
