"""All algorithms again, in slow NumPy, from the paper's equations: nothing here is shared with the library.

Straight loops over rounds and clients, flat weights, exact inner solves. A federation is a list of `Points`, one for
each client, and a loss is `softmax` or `squared`: both are, for a point of mass m and target t with outputs f = Wx,

    m·A(f) − tᵀf,    A(f) = log Σ_c exp f_c  or  ½‖f‖²,

so that a label is the target e_y, a soft label ŷ the target mŷ, and ∇A(f) the prediction. Weights are W [classes,
features] read row by row, which is the order of `fedlap.logistic()`.

Every algorithm takes `drawn`, the clients of each round (a list of lists), and yields a `Round` for each. Those without
a prior take `start` too, the w_g that they begin with; the others begin with the prior's mean, zero.
"""

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


class Round(NamedTuple):
    """What is left after a round; v, V and y of each client, and what an algorithm does not have is None."""

    w: np.ndarray
    S: np.ndarray | None = None
    v: list | None = None
    V: list | None = None
    y: dict | None = None  # the soft labels of each client that has spoken, on its own memory
    precision: np.ndarray | None = None  # of q_g at w_g, where that is more than S


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


def structured(matrix, covariance):
    """A precision is always a dense matrix here; a diagonal one has zeros outside its diagonal."""
    return np.diag(np.diag(matrix)) if covariance == "diagonal" else matrix


def damping(rho, k, clients):
    """ρ_k: a number, 1/K or N_k/N (sec. 3.2, App. E)."""
    if rho == "evenly":
        return 1 / len(clients)
    if rho == "by_share":
        return clients[k].n / sum(client.n for client in clients)
    return rho


def fedavg(loss, clients, drawn, start):
    """McMahan et al. (2017); sec. 2: eq. (2) with neither dual nor prox, and an average weighted by N_k."""
    w_g = start
    for active in drawn:
        w = {k: argmin(energy(loss, clients[k], 1 / clients[k].n), w_g) for k in active}
        w_g = sum(clients[k].n * w[k] for k in active) / sum(clients[k].n for k in active)
        yield Round(w_g)


def fedprox(loss, clients, drawn, start, alpha):
    """Li et al. (2020); sec. 2: eq. (2) with v_k fixed to zero, and an average weighted by N_k."""
    w_g = start
    for active in drawn:
        w = {}
        for k in active:
            mean_loss = energy(loss, clients[k], 1 / clients[k].n)
            w[k] = argmin(mean_loss.plus(square(alpha, around=w_g)), w_g)
        w_g = sum(clients[k].n * w[k] for k in active) / sum(clients[k].n for k in active)
        yield Round(w_g)


def fedadmm(loss, clients, drawn, start, alpha):
    """Eq. (2). A client counts with the last w_k and v_k it had: the start and zero before its first round."""
    K, w_g = len(clients), start
    v, sent = [np.zeros_like(w_g) for _ in clients], [start for _ in clients]
    for active in drawn:
        for k in active:
            mean_loss = energy(loss, clients[k], 1 / clients[k].n)
            w_k = argmin(mean_loss.plus(line(v[k]), square(alpha, around=w_g)), w_g)
            v[k] = v[k] + alpha * (w_k - w_g)
            sent[k] = w_k + v[k] / alpha
        w_g = sum(sent) / K
        yield Round(w_g, v=list(v))


def feddyn(loss, clients, drawn, start, alpha, weight_decay=0.0):
    """Acar et al. (2021), algorithm 1, in this paper's letters; sec. 2: α_k ∝ α/N_k and local weight decay.

    Their server keeps h' ← h' − α 1/K Σ_drawn (w_k − w_g) and sets w_g ← mean_drawn w_k − h'/α; h here is −h'/α.
    """
    K, N, w_g = len(clients), sum(client.n for client in clients), start
    v, h = [np.zeros_like(w_g) for _ in clients], np.zeros_like(w_g)
    for active in drawn:
        w = {}
        for k in active:
            alpha_k = alpha * (N / K) / clients[k].n
            mean_loss = energy(loss, clients[k], 1 / clients[k].n)
            w[k] = argmin(mean_loss.plus(line(v[k]), square(alpha_k, around=w_g), square(weight_decay)), w_g)
            v[k] = v[k] + alpha_k * (w[k] - w_g)
        h = h + sum(w[k] - w_g for k in active) / K
        w_g = sum(w.values()) / len(active) + h
        yield Round(w_g, v=list(v))


def bcm(loss, clients, drawn, delta, covariance):
    """Eq. (3) with Laplace's p_k: one round."""
    P = size(clients)
    v, V = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients]
    for active in drawn:
        for k in active:
            w_k = argmin(energy(loss, clients[k]).plus(square(delta)), np.zeros(P))
            S_k = structured(loss.hessian(clients[k], w_k), covariance) + delta * np.eye(P)
            v[k], V[k] = S_k @ w_k, S_k - delta * np.eye(P)
        S_g = delta * np.eye(P) + sum(V)
        w_g = np.linalg.solve(S_g, sum(v))
        yield Round(w_g, S_g, list(v), list(V))


def pvi(loss, clients, drawn, delta, rho):
    """Eqs. (5) and (6) over diagonal Gaussians N(m, diag(s)⁻¹), for losses that are quadratic.

    With ℓ_k(w) = ½wᵀAw − bᵀw, the client's objective is, up to a constant,

        ½mᵀAm − bᵀm + vᵀm − ½mᵀVm + ½(m − w_g)ᵀS_g(m − w_g)  +  ½ Σ_i [(A_ii − V_i + S_g,i)/s_i + log s_i],

    the first part from the means and the second from the variances 1/s_i. Each has its own minimiser,

        (A − V + S_g) m = b − v + S_g w_g,    s_i = A_ii − V_i + S_g,i.
    """
    P = size(clients)
    w_g, S_g = np.zeros(P), delta * np.ones(P)
    v, V = [np.zeros(P) for _ in clients], [np.zeros(P) for _ in clients]
    for active in drawn:
        for k in active:
            A, b = loss.hessian(clients[k], np.zeros(P)), -loss.gradient(clients[k], np.zeros(P))
            m = np.linalg.solve(A - np.diag(V[k]) + np.diag(S_g), b - v[k] + S_g * w_g)
            s = np.diag(A) - V[k] + S_g
            rho_k = damping(rho, k, clients)
            v[k] = v[k] + rho_k * (s * m - S_g * w_g)
            V[k] = V[k] + rho_k * (s - S_g)
        S_g = delta + sum(V)
        w_g = sum(v) / S_g
        yield Round(w_g, np.diag(S_g), list(v), [np.diag(each) for each in V])


def fedlap(loss, clients, drawn, delta, rho):
    """Eq. (9)."""
    w_g = np.zeros(size(clients))
    v = [np.zeros_like(w_g) for _ in clients]
    for active in drawn:
        for k in active:
            w_k = argmin(energy(loss, clients[k]).plus(line(delta * v[k]), square(delta, around=w_g)), w_g)
            v[k] = v[k] + damping(rho, k, clients) * (w_k - w_g)
        w_g = sum(v)
        yield Round(w_g, v=list(v))


def fedlap_cov(loss, clients, drawn, delta, rho, covariance):
    """Eqs. (12), (14) and (21), with S_k as a matrix of its own, which the library never forms."""
    P = size(clients)
    w_g, S_g = np.zeros(P), delta * np.eye(P)
    v, V = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients]
    for active in drawn:
        for k in active:
            w_k = argmin(
                energy(loss, clients[k]).plus(line(v[k]), square(-V[k]), square(S_g, around=w_g)),
                w_g,
            )
            H_k = structured(loss.hessian(clients[k], w_k), covariance)
            S_k = H_k - V[k] + S_g
            rho_k = damping(rho, k, clients)
            v[k] = v[k] + rho_k * (S_k @ w_k - S_g @ w_g)
            V[k] = (1 - rho_k) * V[k] + rho_k * H_k
        S_g = delta * np.eye(P) + sum(V)
        w_g = np.linalg.solve(S_g, sum(v))
        yield Round(w_g, S_g, list(v), list(V))


def fedlap_kron(loss, clients, drawn, delta, rho, refresh):
    """Eqs. (12), (14) and (21) with H_k that are diagonal in a basis U of all weights, as dense matrices throughout.

    Factors are kept in the weights' own coordinates: V_k = U diag(UᵀH_kU) Uᵀ. A client says it in the basis of the
    last round it took part in; the server turns the others' in its sum, and again if the basis changes.
    """
    P = size(clients)
    w_g, S_g, U, age, asked = np.zeros(P), delta * np.eye(P), np.eye(P), refresh, refresh > 0
    v, V = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients]
    A, B, told = [0.0 for _ in clients], [0.0 for _ in clients], set()
    for active in drawn:
        for k in active:
            w_k = argmin(
                energy(loss, clients[k]).plus(line(v[k]), square(-V[k]), square(S_g, around=w_g)),
                w_g,
            )
            H_k = diagonal_in(U, loss.hessian(clients[k], w_k))
            S_k = H_k - V[k] + S_g
            rho_k = damping(rho, k, clients)
            v[k] = v[k] + rho_k * (S_k @ w_k - S_g @ w_g)
            V[k] = (1 - rho_k) * V[k] + rho_k * H_k
            if asked:
                A[k], B[k] = loss.moments(clients[k], w_k)
                told.add(k)
        S_g = delta * np.eye(P) + sum(V)
        w_g = np.linalg.solve(S_g, sum(v))
        age += 1
        if len(told) == len(clients):
            U, age, told = np.kron(np.linalg.eigh(sum(B))[1], np.linalg.eigh(sum(A))[1]), 0, set()
            for k in range(len(clients)):
                V_k = diagonal_in(U, V[k])
                v[k], V[k] = v[k] + (V_k - V[k]) @ w_g, V_k
            S_g = delta * np.eye(P) + sum(V)
        asked = 0 < refresh <= age + 1
        yield Round(w_g, precision=S_g)


def diagonal_in(U, matrix):
    """U diag(UᵀMU) Uᵀ."""
    return (U * np.diag(U.T @ matrix @ U)) @ U.T


def fedlap_func(loss, clients, drawn, delta, rho, tau, memory):
    """Eq. (17) with τ_i = τ N_kc/M_kc (App. E); `memory` is each client's points, whose masses are N_kc/M_kc.

    The points of a client that has not spoken yet are in no sum.
    """
    P = size(clients)
    w_g = np.zeros(P)
    v, y = [np.zeros(P) for _ in clients], {}
    for active in drawn:
        everyone = [energy(loss, loss.soften(memory[k], w_g)) for k in y]  # ŷ_{i,g}
        for k in active:
            own = [energy(loss, y[k])] if k in y else []  # ŷ_i
            w_k = argmin(
                energy(loss, clients[k])
                .plus(line(delta * v[k]), square(delta, around=w_g))
                .plus(*own, times=-tau)
                .plus(*everyone, times=tau),
                w_g,
            )
            v[k] = v[k] + damping(rho, k, clients) * (w_k - w_g)
            y[k] = loss.soften(memory[k], w_k)
        labels = [energy(loss, points) for points in y.values()]
        w_g = argmin(square(delta).plus(line(-delta * sum(v))).plus(*labels, times=tau), sum(v))
        yield Round(w_g, v=list(v), y=dict(y))


def fedlap_cov_func(loss, clients, drawn, delta, rho, tau, memory, covariance):
    """App. C's combination. The factor is t_k(w) = exp(v_kᵀw − ½wᵀV_kw − Σ_{M_k} τ_i ℓ(ŷ_i, w)).

    Server: w_g is the mode of p_0 Π_k t_k.
    Client: the mode of exp(−ℓ_k) q_g/t_k, where q_g is known to it as exp(−½‖w − w_g‖²_{S_g} − ΣΣ τ_i ℓ(ŷ_{i,g}, w)),
    eq. (25): the right mode, and the right curvature there.
    Site: its curvature at w_k is V_k + τH^{M_k}(w_k), since ŷ_i = f(x_i; w_k), and should be H_k(w_k), eq. (16). So the
    Gaussian part is left with H_k − τH^{M_k}, of which only the positive part keeps V_k a precision.
    Precision: the curvature of −log q_g at w_g, so of the Gaussian part and of the memory points that have a label.
    """
    P = size(clients)
    w_g, S_g = np.zeros(P), delta * np.eye(P)
    v, V, y = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients], {}
    for active in drawn:
        everyone = [energy(loss, loss.soften(memory[k], w_g)) for k in y]
        for k in active:
            own = [energy(loss, y[k])] if k in y else []
            w_k = argmin(
                energy(loss, clients[k])
                .plus(line(v[k]), square(-V[k]), square(S_g, around=w_g))
                .plus(*own, times=-tau)
                .plus(*everyone, times=tau),
                w_g,
            )
            unsaid = structured(loss.hessian(clients[k], w_k) - tau * loss.hessian(memory[k], w_k), covariance)
            eigenvalues, Q = np.linalg.eigh(unsaid)
            H_k = Q @ np.diag(np.maximum(eigenvalues, 0)) @ Q.T
            S_k = H_k - V[k] + S_g
            rho_k = damping(rho, k, clients)
            v[k] = v[k] + rho_k * (S_k @ w_k - S_g @ w_g)
            V[k] = (1 - rho_k) * V[k] + rho_k * H_k
            y[k] = loss.soften(memory[k], w_k)
        S_g = delta * np.eye(P) + sum(V)
        labels = [energy(loss, points) for points in y.values()]
        w_g = argmin(square(S_g).plus(line(-sum(v))).plus(*labels, times=tau), np.linalg.solve(S_g, sum(v)))
        in_memory = sum(structured(loss.hessian(memory[k], w_g), covariance) for k in y)
        yield Round(w_g, S_g, list(v), list(V), dict(y), S_g + tau * in_memory)


def pooled(loss, clients, delta):
    """argmin_w Σ_k ℓ_k(w) + ½δ‖w‖², eq. (1), and the Hessian there."""
    everything = square(delta).plus(*(energy(loss, data) for data in clients))
    w = argmin(everything, np.zeros(size(clients)))
    return w, everything.hessian(w)


def size(clients):
    """P."""
    return clients[0].x.shape[1] * clients[0].targets.shape[1]


ALGORITHMS = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedadmm": fedadmm,
    "feddyn": feddyn,
    "bcm": bcm,
    "pvi": pvi,
    "fedlap": fedlap,
    "fedlap_cov": fedlap_cov,
    "fedlap_func": fedlap_func,
    "fedlap_cov_func": fedlap_cov_func,
    "fedlap_kron": fedlap_kron,
}
