"""The predictive distribution: what a Gaussian over weights says of the outputs and classes of new inputs.

    f(x) ~ N(f(x; w), J S⁻¹ Jᵀ)        the model linearised at w; of a linear model it is exact
    p(y|x) = E[softmax f(x)]           by a link: "probit", a closed form, or "samples", Monte Carlo

The probit link is MacKay's for the log-odds of each class against all others, ℓ_c = f_c − log Σ_{d≠c} exp f_d:

    p_c ∝ σ(κ_c ℓ_c),    κ_c = (1 + π/8 Var ℓ_c)^−1/2,    Var ℓ_c = ∇ℓ_cᵀ (J S⁻¹ Jᵀ) ∇ℓ_c

Of two classes it is σ(κ (f_1 − f_0)) with the variance of the difference. It sees differences of outputs only, as
softmax does: a constant added to all outputs, which data leave open, would make every prediction unsure if each output
were looked at alone.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedlap.algebra.covariance import Covariance, Factored, Variances
from fedlap.algebra.kronecker import TurnedVariances
from fedlap.algebra.precision import as_precision
from fedlap.algebra.vector import Vector
from fedlap.algorithms import ALGORITHMS
from fedlap.arrays import Array, Key, Tree
from fedlap.checks import is_number, whole_number
from fedlap.engines.evaluate import predict
from fedlap.engines.parties import Task
from fedlap.errors import ConfigError, DataError, unknown
from fedlap.models import jacobian
from fedlap.models.likelihood import Categorical, Likelihood
from fedlap.streams import check_seed, stream

LINKS = ("probit", "samples")
SAMPLES = 1000  # draws, unless told otherwise
HELD = 4_000_000  # numbers of draws at a time
ROWS = 500  # at a time, of draws of whole functions
COMMON = 1e11  # variance of an output: beside a larger one, that of differences is off by 1e-4


class Predicted(NamedTuple):
    """Class probabilities [rows, classes], and where each of them lies with the probability that was asked for."""

    probability: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Averaging(NamedTuple):
    """How class probabilities are made of outputs: at their means, "point", or averaged over them by a link."""

    link: str = "probit"
    samples: int = SAMPLES
    seed: int = 0
    interval: float | None = None  # the share of one, where it is wanted

    @classmethod
    def of(
        cls, posterior: bool, *, link: str | None, samples: int | None, seed: int | None, interval: Any, classes: int
    ) -> "Averaging":
        """What was asked for; an error if a part of the question would make no difference."""
        given = {"link": link, "samples": samples, "seed": seed, "interval": interval}
        said = [option for option, value in given.items() if value is not None]
        if not isinstance(posterior, (bool, np.bool_)):
            raise ConfigError(f"posterior is {posterior!r}; expected True or False")
        if not posterior:
            if said:
                raise ConfigError(f"{said[0]} is of the posterior, and the point estimate has none; use posterior=True")
            return cls("point")
        link = "probit" if link is None else link
        if link not in LINKS:
            raise unknown("link", link, LINKS)
        drawn = link == "samples" or (interval is not None and classes > 2)
        if not drawn and (samples is not None or seed is not None):
            option = "seed" if samples is None else "samples"
            raise ConfigError(f'{option} is of draws, and there are none with link="probit"; use link="samples"')
        return cls(
            link,
            whole_number("samples", SAMPLES if samples is None else samples, least=1),
            check_seed("seed", 0 if seed is None else seed),
            None if interval is None else share(interval),
        )


class Predictive(NamedTuple):
    """The outputs of a model at some inputs, before softmax: a Gaussian a row."""

    likelihood: Likelihood
    mean: np.ndarray  # [n, C]
    covariance: np.ndarray  # [n, C, C]

    def probabilities(self, averaging: Averaging) -> np.ndarray:
        """Class probabilities, averaged over the outputs: [n, C]."""
        if averaging.link == "samples":
            return self._by_rows(lambda part: part.draws(averaging).mean(0), averaging)
        if not isinstance(self.likelihood, Categorical):
            name = type(self.likelihood).__name__
            raise ConfigError(f'link="probit" is of softmax, and the likelihood is {name}; use link="samples"')
        return _probit(self.mean, self.covariance)

    def interval(self, averaging: Averaging) -> tuple[np.ndarray, np.ndarray]:
        """Where each probability lies with the probability asked for, as much above as below: two of [n, C].

        Of two classes they are quantiles of σ(f_1 − f_0), exactly; of more, of draws.
        """
        tails = (1 - share(averaging.interval)) / 2
        if isinstance(self.likelihood, Categorical) and self.mean.shape[1] == 2:
            margin = self.mean - self.mean[:, ::-1]
            deviation = np.sqrt(2 * np.maximum(self.variance, 0))[:, None]  # that of the difference
            reach = -scipy.special.ndtri(tails) * deviation
            return scipy.special.expit(margin - reach), scipy.special.expit(margin + reach)
        quantiles = lambda part: np.quantile(part.draws(averaging), (tails, 1 - tails), axis=0).swapaxes(0, 1)
        found = self._by_rows(quantiles, averaging)
        return found[:, 0], found[:, 1]

    def draws(self, averaging: Averaging) -> np.ndarray:
        """Class probabilities of draws of the outputs, the same noise for every row: [samples, n, C].

        So the probabilities of a row do not depend on the rows beside it. Every draw has its mirror image.
        """
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))[:, None]
        half = stream(averaging.seed, "predictive").standard_normal((-(-averaging.samples // 2), self.mean.shape[1]))
        noise = np.concatenate([half, -half])[: averaging.samples]
        outputs = self.mean + np.einsum("ncd,sd->snc", root, noise)
        return np.asarray(self.likelihood.probabilities(jnp.asarray(outputs)), np.float64)

    @property
    def variance(self) -> np.ndarray:
        """The variance of each row's outputs about their own mean, summed: how much softmax is left in doubt, [n]."""
        return np.trace(self.covariance, axis1=1, axis2=2) - self.covariance.mean((1, 2)) * self.mean.shape[1]

    def _by_rows(self, function: Any, averaging: Averaging) -> np.ndarray:
        """The function of a few rows at a time, so that their draws can be held."""
        size = max(1, HELD // (averaging.samples * self.mean.shape[1]))
        starts = range(0, max(len(self.mean), 1), size)
        part = lambda i: self._replace(mean=self.mean[i : i + size], covariance=self.covariance[i : i + size])
        return np.concatenate([function(part(i)) for i in starts])


class Posterior(NamedTuple):
    """A fitted model and its Gaussian N(w, S⁻¹) over weights."""

    task: Task
    w: Vector
    covariance: Covariance

    @classmethod
    def of(cls, task: Task, w: Vector, precision: Any) -> "Posterior":
        """The posterior of a precision, or of its numbers; an error where there is none."""
        if precision is None:
            raise ConfigError(
                "there is no posterior: the algorithm has no precision, and predicts at a point. "
                f"Those that have one: {', '.join(_with_precision())}"
            )
        return cls(task, w, as_precision(precision, w).covariance(w))

    def predictive(self, inputs: Array) -> Predictive:
        """The outputs at all inputs; an error where softmax sees only what their covariance loses to rounding."""
        parts = list(self.in_parts(inputs))
        found = parts[0]._replace(
            mean=np.concatenate([part.mean for part in parts]),
            covariance=np.concatenate([part.covariance for part in parts]),
        )
        most = np.abs(found.covariance).max((1, 2))
        if isinstance(self.task.likelihood, Categorical) and (most > COMMON * (1 + found.variance)).any():
            raise DataError(
                f"outputs have a variance of {most.max():.1e} in common, in which their differences are lost; expected "
                "inputs on a smaller scale, or predict, which asks for the differences alone"
            )
        return found

    def predict(self, inputs: Array, averaging: Averaging) -> np.ndarray | Predicted:
        """Class probabilities [n, C], and where they lie if that is asked; no covariance of all rows is ever held."""
        parts = self.in_parts(inputs, centred=isinstance(self.task.likelihood, Categorical))
        if averaging.interval is None:
            return np.concatenate([part.probabilities(averaging) for part in parts])
        found = [(part.probabilities(averaging), *part.interval(averaging)) for part in parts]
        return Predicted(*map(np.concatenate, zip(*found, strict=True)))

    def sample(self, inputs: Array, samples: int, seed: int) -> np.ndarray:
        """Class probabilities of functions f(x; w) + J (w_s − w), for draws w_s of the posterior: [samples, n, C]."""
        keys = jax.random.split(jax.random.key(check_seed("seed", seed)), whole_number("samples", samples, least=1))
        starts = range(0, max(len(inputs), 1), ROWS)

        def of_draw(key):
            step = self.covariance.draw(_noise(key, self.w))
            parts = [_along(self.task, self.w, step, inputs[i : i + ROWS]) for i in starts]
            return np.concatenate([np.asarray(part) for part in parts])

        return np.stack([of_draw(key) for key in keys])

    def in_parts(self, inputs: Array, centred: bool = False) -> Iterator[Predictive]:
        """The outputs at a few inputs at a time; the last part is padded for the program, and cut again.

        Centred, a matrix gives their covariance about their own mean, which is all that softmax sees: of inputs on a
        huge scale, differences would be lost in the variance of the constant that may be added to all outputs.
        """
        model, rows = self.task.model, len(inputs)
        layers = isinstance(self.covariance, (Variances, TurnedVariances)) and jacobian.has_layers(model)
        example = jax.ShapeDtypeStruct((1, *inputs.shape[1:]), inputs.dtype)
        chunk = (jacobian.layer_chunk if layers else jacobian.example_chunk)(model, self.w.tree, example)
        size = min(chunk, max(rows, 1))
        if not rows:
            classes = jax.eval_shape(model.apply, self.w.tree, example).shape[1]
            yield Predictive(self.task.likelihood, np.zeros((0, classes)), np.zeros((0, classes, classes)))
        for start in range(0, rows, size):
            part = inputs[np.minimum(np.arange(start, start + size), rows - 1)]
            if layers:
                mean, covariance = _through_layers(self.task, self.w, self.covariance, part)
            else:
                mean, gradients = _gradients(self.task, self.w, part)
                if centred and isinstance(self.covariance, Factored):
                    gradients = jax.tree.map(_centred, gradients)
                covariance = self.covariance.between(Vector(gradients))
            own = min(size, rows - start)
            mean, covariance = (np.asarray(found, np.float64)[:own] for found in (mean, covariance))
            if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
                raise DataError("the model's outputs are not finite numbers there; the run has diverged, or overflows")
            yield Predictive(self.task.likelihood, mean, covariance)


def probabilities(task: Task, w: Vector, precision: Any, inputs: Array, averaging: Averaging) -> np.ndarray | Predicted:
    """Class probabilities, by the link."""
    if averaging.link == "point":
        return np.asarray(predict(task, w, inputs))
    return Posterior.of(task, w, precision).predict(inputs, averaging)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """How unsure class probabilities are, in nats, a number a row: from 0 to log C."""
    return -scipy.special.xlogy(probabilities, probabilities).sum(-1)


def share(interval: object) -> float:
    """An interval's share, checked."""
    if not is_number(interval) or not 0 < interval < 1:
        raise ConfigError(f"interval is {interval!r}; expected a share between 0 and 1, such as 0.9")
    return float(interval)


def _probit(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    itself = np.eye(mean.shape[1], dtype=bool)
    others = np.where(itself, -np.inf, mean[:, None, :])  # [n, c, d]
    rest = np.asarray(scipy.special.logsumexp(others, axis=2))
    slopes = np.where(itself, 1, -np.exp(others - rest[:, :, None]))  # ∇ℓ_c
    variance = np.einsum("ncd,ncd->nc", slopes @ covariance, slopes)
    p = scipy.special.expit((mean - rest) / np.sqrt(1 + np.pi / 8 * np.maximum(variance, 0)))
    return p / p.sum(1, keepdims=True)


def _centred(leaf: Array) -> np.ndarray:
    """A leaf of gradients [n, C, …] less its mean over the outputs, in double precision as the matrix is."""
    numbers = np.asarray(leaf, np.float64)
    return numbers - numbers.mean(1, keepdims=True)


def _with_precision() -> list[str]:
    """The names of the algorithms whose server knows a precision."""

    def has_one(kind: type) -> bool:
        known = [of_server for base in getattr(kind, "__orig_bases__", ()) for of_server in get_args(base)[:1]]
        return any(hasattr(of_server, name) for of_server in known for name in ("S", "precision"))

    return [kind.__name__ for kind in ALGORITHMS.values() if has_one(kind)]


@partial(jax.jit, static_argnums=0)
def _through_layers(
    task: Task, w: Vector, covariance: Variances | TurnedVariances, inputs: Array
) -> tuple[Array, Array]:
    if isinstance(covariance, TurnedVariances):
        variances, sides = covariance.variances, covariance.basis.tree
    else:
        variances, sides = covariance, jax.tree.map(lambda leaf: None, w.tree)
    return jacobian.covariance(task.model, w.tree, variances.v.tree, sides, inputs)


@partial(jax.jit, static_argnums=0)
def _gradients(task: Task, w: Vector, inputs: Array) -> tuple[Array, Tree]:
    return jacobian.gradients(task.model, w.tree, inputs)


@partial(jax.jit, static_argnums=0)
def _along(task: Task, w: Vector, step: Vector, inputs: Array) -> Array:
    """Class probabilities of the linearised function, a step away from w."""
    apply = lambda w: task.model.apply(w.tree, inputs)
    outputs, change = jax.jvp(apply, (w,), (step,))
    return task.likelihood.probabilities(outputs + change)


@jax.jit
def _noise(key: Key, like: Vector) -> Vector:
    flat = like.flat
    return like.like(jax.random.normal(key, flat.shape, flat.dtype))
