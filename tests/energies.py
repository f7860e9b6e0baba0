"""Losses and quadratics of the oracle, in slow NumPy: values, gradients, Hessians, and Newton's argmin of sums."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Points(NamedTuple):
    """Inputs with masses and mass-weighted targets: [n, features], [n], [n, classes]."""

    x: np.ndarray
    mass: np.ndarray
    targets: np.ndarray

    @property
    def n(self):
        return len(self.x)


def labelled(x, labels, classes):
    """Data: every example has mass one and its label as target."""
    return Points(np.asarray(x, float), np.ones(len(x)), np.eye(classes)[labels])


class Loss:
    """Σ_i m_i A(f_i) − t_iᵀ f_i as a function of the flat weights, with its derivatives."""

    def outputs(self, points, w):
        return points.x @ w.reshape(-1, points.x.shape[1]).T

    def value(self, points, w):
        f = self.outputs(points, w)
        return points.mass @ self.potential(f) - np.sum(points.targets * f)

    def gradient(self, points, w):
        residual = points.mass[:, None] * self.predict(self.outputs(points, w)) - points.targets
        return (residual.T @ points.x).reshape(-1)

    def hessian(self, points, w):
        """Both losses are generalised linear, so this is the Gauss–Newton matrix too."""
        curvature = np.stack([self.curvature(f) for f in self.outputs(points, w)])
        return np.einsum("n,ncd,na,nb->cadb", points.mass, curvature, points.x, points.x).reshape(w.size, w.size)

    def moments(self, points, w):
        """Σ m xxᵀ and Σ m ∇²A(f): the Hessian is their Kronecker product where only one of them varies."""
        curvature = np.stack([self.curvature(f) for f in self.outputs(points, w)])
        return points.x.T @ (points.mass[:, None] * points.x), np.tensordot(points.mass, curvature, 1)

    def soften(self, points, w):
        """The same points, with the predictions of w as targets."""
        return points._replace(targets=points.mass[:, None] * self.predict(self.outputs(points, w)))


class Softmax(Loss):
    def potential(self, f):
        top = f.max(axis=1)
        return top + np.log(np.exp(f - top[:, None]).sum(axis=1))

    def predict(self, f):
        e = np.exp(f - f.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def curvature(self, f):
        p = self.predict(f)
        return np.diag(p) - np.outer(p, p)


class SquaredError(Loss):
    def potential(self, f):
        return (f**2).sum(axis=1) / 2

    def predict(self, f):
        return f

    def curvature(self, f):
        return np.eye(f.size)


softmax, squared = Softmax(), SquaredError()


class Energy(NamedTuple):
    """A convex function of the weights with its gradient and its Hessian; energies add up and scale."""

    value: Callable
    gradient: Callable
    hessian: Callable

    def plus(self, *others, times=1.0):
        """This energy and `times` the others."""
        everything = [(1.0, self), *((times, other) for other in others)]

        def total(name):
            return lambda w: sum(factor * getattr(energy, name)(w) for factor, energy in everything)

        return Energy(total("value"), total("gradient"), total("hessian"))


def energy(loss, points, scale=1.0):
    """Σ_i ℓ(t_i, w) over the points, scaled."""
    return Energy(
        lambda w: scale * loss.value(points, w),
        lambda w: scale * loss.gradient(points, w),
        lambda w: scale * loss.hessian(points, w),
    )


def line(v):
    """vᵀw."""
    return Energy(lambda w: v @ w, lambda w: v, lambda w: np.zeros((w.size, w.size)))


def square(S, around=None):
    """½‖w − m‖²_S, with its constant; S is a matrix or a multiple of the identity."""

    def parts(w):
        matrix = S * np.eye(w.size) if np.isscalar(S) else S
        return matrix, w if around is None else w - around

    def value(w):
        matrix, d = parts(w)
        return d @ matrix @ d / 2

    def gradient(w):
        matrix, d = parts(w)
        return matrix @ d

    return Energy(value, gradient, lambda w: parts(w)[0])


def argmin(energy, start, steps=200):
    """Newton with halving.

    A step is the shortest of the solutions of Hd = −g, so along directions where the function is constant (the
    softmax of W and of W + column are the same) the minimiser keeps the coordinates of the start.
    """
    w, steepest = np.array(start, float), 0.0
    for _ in range(steps):
        g = energy.gradient(w)
        steepest = max(steepest, np.abs(g).max())
        eigenvalues, Q = np.linalg.eigh(energy.hessian(w))
        slopes = Q.T @ g
        # Where outputs are saturated rounding errors look like curvature, and only the slope tells that there is none.
        keep = (eigenvalues > 1e-13 * eigenvalues.max()) & (np.abs(slopes) > 4e-16 * steepest)
        d = -Q[:, keep] @ (slopes[keep] / eigenvalues[keep])
        t, before = 1.0, energy.value(w)
        while energy.value(w + t * d) > before + 1e-4 * t * (g @ d) + 1e-14 * (1 + abs(before)) and t > 1e-9:
            t /= 2
        w = w + t * d
        if t == 1.0 and np.abs(d).max() <= 1e-15 * (1 + np.abs(w).max()):
            break
    return w
