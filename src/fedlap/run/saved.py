"""A history in a folder: its description in history.json, numbers in arrays.npz, both readable without fedlap.

Nothing in it is a pickle, and nothing in it is a client's: neither rows nor what a client remembers between rounds.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap import files
from fedlap.algebra.evidence import plain
from fedlap.algebra.kronecker import Rotated, Shadow
from fedlap.algebra.vector import Vector
from fedlap.data.coding import Coding
from fedlap.engines.parties import Task
from fedlap.engines.scores import Metrics
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.files import PathLike, new_folder, read_described, read_description
from fedlap.models import blueprint
from fedlap.models.curvature import GaussNewton
from fedlap.models.likelihood import Likelihood
from fedlap.models.model import ModelLike, as_model
from fedlap.run.fit import Fit

FORMAT = 1
DESCRIPTION, ARRAYS = "history.json", "arrays.npz"
PRECISIONS = ("S", "precision")
TRAIN = "train"


def save(
    folder: PathLike,
    fit: Fit,
    test: Metrics,
    seconds: np.ndarray,
    watched: dict[str, Metrics],
) -> None:
    """Write a history into a new folder; one that exists is never touched."""
    arrays: dict[str, Any] = {**test._asdict(), "seconds": seconds}
    for place, metrics in enumerate(watched.values()):
        arrays |= {f"watched.{place}.{name}": values for name, values in metrics._asdict().items()}
    arrays |= {f"weights.{name}": np.asarray(array) for name, array in fit.w.named.items()}
    arrays |= {name: np.asarray(precision) for name in PRECISIONS if (precision := getattr(fit, name)) is not None}
    content = io.BytesIO()
    np.savez(content, **arrays)
    description = {
        "format": FORMAT,
        "method": fit.method,
        "model": blueprint.describe(fit.task.model),
        "likelihood": type(fit.task.likelihood).__name__,
        "classes": fit.classes,
        "shape": fit.shape,
        "features": fit.features,
        "coding": None if fit.coding is None else fit.coding.as_dict(),
        "dtype": str(fit.dtype),
        "delta": plain(fit.delta),
        "narrowing": fit.narrowing,
        "turned": isinstance(fit.precision, (Rotated, Shadow)),
        "watched": list(watched),
        "sha256": hashlib.sha256(content.getvalue()).hexdigest(),
    }
    with new_folder(folder) as unfinished:
        files.write(unfinished / ARRAYS, content.getvalue())
        files.write(unfinished / DESCRIPTION, json.dumps(description, indent=2) + "\n")


def load(
    folder: PathLike, model: ModelLike | None, likelihood: Likelihood
) -> tuple[Fit, Metrics, np.ndarray, dict[str, Metrics]]:
    """What `save` was given, all of it checked."""
    folder = Path(folder)
    description = read_description(folder / DESCRIPTION, (FORMAT,), "history", "saved")
    try:
        arrays = _arrays(folder / ARRAYS, description["sha256"])
        fit = _fit(folder, description, arrays, model, likelihood)
        test = _metrics(arrays, "")
        watched = {name: _metrics(arrays, f"watched.{place}.") for place, name in enumerate(description["watched"])}
        seconds = arrays["seconds"]
    except FedlapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder / DESCRIPTION}: not a saved history ({type(error).__name__}: {error})") from error
    return fit, test, seconds, watched


def curves(folder: PathLike) -> tuple[str, Metrics, np.ndarray, bool]:
    """The method of a saved history, its scores and its seconds: of any model, which is not made.

    Scores are on the test set, if there is one as the last says, or else on the training rows.
    """
    folder = Path(folder)
    description = read_description(folder / DESCRIPTION, (FORMAT,), "history", "saved")
    try:
        arrays = _arrays(folder / ARRAYS, description["sha256"])
        test = _metrics(arrays, "")
        tested = len(test.nll) > 0
        scores = test if tested else _metrics(arrays, f"watched.{description['watched'].index(TRAIN)}.")
        return str(description["method"]), scores, arrays["seconds"], tested
    except (KeyError, ValueError) as error:
        raise DataError(f"{folder / DESCRIPTION}: not a saved history ({type(error).__name__}: {error})") from error


def _metrics(arrays: dict[str, np.ndarray], prefix: str) -> Metrics:
    """The scores on one set; a history that is older than a score has NaN in its place."""
    accuracy, nll, *others = (arrays.get(prefix + name) for name in Metrics._fields)
    if accuracy is None or nll is None:
        raise KeyError(f"{prefix}accuracy, {prefix}nll")
    return Metrics(accuracy, nll, *(np.full_like(nll, np.nan) if each is None else each for each in others))


def _fit(
    folder: Path,
    description: dict[str, Any],
    arrays: dict[str, np.ndarray],
    model: ModelLike | None,
    likelihood: Likelihood,
) -> Fit:
    """The fit that a description and its arrays stand for."""
    if model is None and description["model"] is None:
        raise ConfigError(f"{folder}: its model is not made of fedlap's layers; pass it: fedlap.load(folder, model=…)")
    if description["likelihood"] != type(likelihood).__name__:
        raise ConfigError(
            f"{folder}: its likelihood is {description['likelihood']}; pass it: fedlap.load(folder, likelihood=…)"
        )
    rebuilt = blueprint.rebuild(description["model"]) if model is None else as_model(model)
    classes, shape, dtype = tuple(description["classes"]), tuple(description["shape"]), np.dtype(description["dtype"])
    features = None if description["features"] is None else tuple(description["features"])
    inputs = jax.ShapeDtypeStruct((1, *shape), jax.dtypes.canonicalize_dtype(dtype))
    like = jax.eval_shape(lambda key, x: rebuilt.init(key, x, len(classes)), jax.random.key(0), inputs)
    expected = {f"weights.{name}": array.shape for name, array in Vector(like).named.items()}
    shapes = {name: array.shape for name, array in arrays.items() if name.startswith("weights.")}
    if shapes != expected:
        raise DataError(f"{folder / ARRAYS}: its weights are {shapes}; expected those of the model, {expected}")
    w = Vector(jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected]))
    task = Task(rebuilt, likelihood, GaussNewton())
    S, precision = map(arrays.get, PRECISIONS)
    if description.get("turned"):
        S, precision = (Shadow(jnp.asarray(arrays[name])) for name in PRECISIONS)
    coding = None if description.get("coding") is None else Coding.from_dict(description["coding"])
    of_data = description["method"], task, classes, shape, features, dtype
    return Fit(
        *of_data, w, S, precision, coding, delta=description.get("delta"), narrowing=description.get("narrowing", 0.0)
    )


def _arrays(path: Path, sha256: str) -> dict[str, np.ndarray]:
    content = read_described(path, sha256, DESCRIPTION)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # an archive that is none fails in a dozen ways, each an exception of its own
        raise DataError(f"{path}: not a file of arrays ({error})") from error
