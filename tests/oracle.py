"""All algorithms again, in slow NumPy, from the paper's equations: nothing here is shared with the library.

Straight loops over rounds and clients, flat weights, exact inner solves. A federation is a list of `Points`, one for
each client, and a loss is `softmax` or `squared`: both are, for a point of mass m and target t with outputs f = Wx,

    m·A(f) − tᵀf,    A(f) = log Σ_c exp f_c  or  ½‖f‖²,

so that a label is the target e_y, a soft label ŷ the target mŷ, and ∇A(f) the prediction. Weights are W [classes,
features] read row by row, which is the order of `fedlap.logistic()`.

Every algorithm takes `drawn`, the clients of each round (a list of lists), and yields a `Round` for each. Those without
a prior take `start` too, the w_g that they begin with; the others begin with the prior's mean, zero. Those who count
their steps take `local` instead of exact inner solves: what SGD does on the minibatches of each round and client.
"""

from typing import NamedTuple

import numpy as np

from energies import (
    Energy as Energy,
)
from energies import (
    Loss as Loss,
)
from energies import (
    Points,
    argmin,
    energy,
    line,
    square,
)
from energies import (
    Softmax as Softmax,
)
from energies import (
    SquaredError as SquaredError,
)
from energies import (
    labelled as labelled,
)
from energies import (
    softmax as softmax,
)
from energies import (
    squared as squared,
)


class Round(NamedTuple):
    """What is left after a round; v, V and y of each client, and what an algorithm does not have is None."""

    w: np.ndarray
    S: np.ndarray | None = None
    v: list | None = None
    V: list | None = None
    y: dict | None = None  # the soft labels of each client that has spoken, on its own memory
    precision: np.ndarray | None = None  # of q_g at w_g, where that is more than S
    c: list | None = None  # SCAFFOLD's control variates
    delta: float | None = None  # where the evidence chooses it


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


class Local(NamedTuple):
    """SGD with heavy-ball momentum; `batches[round][k]` are row numbers of client k, an array for each of its steps."""

    batches: list
    rate: float
    momentum: float = 0.0

    def descend(self, loss, data, round, k, start, extra):
        """w after the steps of one client in one round, on its mean loss and a further gradient `extra(w)`."""
        w, u = start, np.zeros_like(start)
        for rows in self.batches[round][k]:
            some = Points(data.x[rows], data.mass[rows], data.targets[rows])
            u = self.momentum * u + loss.gradient(some, w) / some.n + extra(w)
            w = w - self.rate * u
        return w

    def coefficients(self, round, k, pull=0.0):
        """a_k: by how much the gradient of each step has moved w at the end, in units of the rate.

        Step by step, as matrices over the gradients of all steps: u_i and the way so far are linear in them.
        """
        steps = len(self.batches[round][k])
        u, way = np.zeros(steps), np.zeros(steps)
        for i in range(steps):
            u = self.momentum * u + np.eye(steps)[i] - self.rate * pull * way
            way = way + u
        return way


def scaffold(loss, clients, drawn, start, local, control="gradient", server_rate=1.0):
    """Karimireddy et al. (2020), algorithm 1, with clients weighed by N_k, as their appendix allows.

    Their server keeps c by the changes of the clients drawn, and so does this one: c ← c + Σ_drawn (N_k/N) Δc_k.
    """
    N, w_g, c = sum(client.n for client in clients), start, np.zeros_like(start)
    own = [np.zeros_like(start) for _ in clients]
    for round, active in enumerate(drawn):
        change, total = np.zeros_like(start), sum(clients[k].n for k in active)
        moved = np.zeros_like(start)
        for k in active:
            correction = -own[k] + c
            w_k = local.descend(loss, clients[k], round, k, w_g, lambda w, correction=correction: correction)
            if control == "gradient":
                new = loss.gradient(clients[k], w_g) / clients[k].n
            else:
                new = own[k] - c + (w_g - w_k) / (local.rate * local.coefficients(round, k).sum())
            change = change + clients[k].n / N * (new - own[k])
            moved = moved + clients[k].n / total * (w_k - w_g)
            own[k] = new
        w_g, c = w_g + server_rate * moved, c + change
        yield Round(w_g, c=list(own))


def fednova(loss, clients, drawn, start, local, alpha=0.0):
    """Wang et al. (2020), eq. (10) and sec. 4: τ_eff = Σ p_k ‖a_k‖₁, and gradients that are normalised by ‖a_k‖₁."""
    w_g = start
    for round, active in enumerate(drawn):
        p = {k: clients[k].n / sum(clients[j].n for j in active) for k in active}
        a = {k: np.abs(local.coefficients(round, k, alpha)).sum() for k in active}
        direction = np.zeros_like(w_g)
        for k in active:
            near = lambda w, centre=w_g: alpha * (w - centre)
            w_k = local.descend(loss, clients[k], round, k, w_g, near)
            direction = direction + p[k] * (w_g - w_k) / (local.rate * a[k])
        w_g = w_g - local.rate * sum(p[k] * a[k] for k in active) * direction
        yield Round(w_g)


def fedopt(loss, clients, drawn, start, local, rule, learning_rate, beta1=0.9, beta2=0.99, tau=1e-3):
    """Reddi et al. (2021), algorithm 2, number by number; the average is weighted by N_k, as in their experiments."""
    w_g, m, v = start.copy(), np.zeros_like(start), np.full_like(start, tau**2)
    for round, active in enumerate(drawn):
        w = {k: local.descend(loss, clients[k], round, k, w_g, lambda w: 0.0) for k in active}
        delta = sum(clients[k].n * (w[k] - w_g) for k in active) / sum(clients[k].n for k in active)
        for i, d in enumerate(delta):
            m[i] = beta1 * m[i] + (1 - beta1) * d
            if rule == "adagrad":
                v[i] = v[i] + d**2
            elif rule == "yogi":
                v[i] = v[i] - (1 - beta2) * d**2 * np.sign(v[i] - d**2)
            else:
                v[i] = beta2 * v[i] + (1 - beta2) * d**2
        w_g = w_g + learning_rate * m / (np.sqrt(v) + tau)
        yield Round(w_g)


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


def mackay(delta, w, H):
    """MacKay (1992), the step of δ: γ/‖w‖², where γ = P − δ tr (δI + H)⁻¹; at most to twice or half of what it was."""
    if not H.any():  # nothing is known yet
        return delta
    gamma = w.size - delta * np.trace(np.linalg.inv(delta * np.eye(w.size) + H))
    return np.clip(gamma / (w @ w), delta / 2, delta * 2)


def undamped(V, reached):
    """Σ_k of what V_k tends to, of which it has reached a part by now."""
    return sum((each / part for each, part in zip(V, reached, strict=True) if part > 0), np.zeros_like(V[0]))


def fedlap_cov(loss, clients, drawn, delta, rho, covariance, evidence=False):
    """Eqs. (12), (14) and (21), with S_k as a matrix of its own, which the library never forms."""
    P = size(clients)
    w_g, S_g, known, reached = np.zeros(P), delta * np.eye(P), np.zeros((P, P)), np.zeros(len(clients))
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
            reached[k] = (1 - rho_k) * reached[k] + rho_k
        delta = mackay(delta, w_g, known) if evidence else delta
        S_g, known = delta * np.eye(P) + sum(V), undamped(V, reached)
        w_g = np.linalg.solve(S_g, sum(v))
        yield Round(w_g, S_g, list(v), list(V), delta=delta)


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


def fedlap_cov_func(loss, clients, drawn, delta, rho, tau, memory, covariance, evidence=False):
    """App. C's combination. The factor is t_k(w) = exp(v_kᵀw − ½wᵀV_kw − Σ_{M_k} τ_i ℓ(ŷ_i, w)).

    Server: w_g is the mode of p_0 Π_k t_k.
    Client: the mode of exp(−ℓ_k) q_g/t_k, where q_g is known to it as exp(−½‖w − w_g‖²_{S_g} − ΣΣ τ_i ℓ(ŷ_{i,g}, w)),
    eq. (25): the right mode, and the right curvature there.
    Site: its curvature at w_k is V_k + τH^{M_k}(w_k), since ŷ_i = f(x_i; w_k), and should be H_k(w_k), eq. (16). So the
    Gaussian part is left with H_k − τH^{M_k}, of which only the positive part keeps V_k a precision.
    Precision: the curvature of −log q_g at w_g, so of the Gaussian part and of the memory points that have a label.
    """
    P = size(clients)
    w_g, S_g, known, reached = np.zeros(P), delta * np.eye(P), np.zeros((P, P)), np.zeros(len(clients))
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
            reached[k] = (1 - rho_k) * reached[k] + rho_k
            y[k] = loss.soften(memory[k], w_k)
        delta = mackay(delta, w_g, known) if evidence else delta
        S_g = delta * np.eye(P) + sum(V)
        labels = [energy(loss, points) for points in y.values()]
        w_g = argmin(square(S_g).plus(line(-sum(v))).plus(*labels, times=tau), np.linalg.solve(S_g, sum(v)))
        in_memory = sum(structured(loss.hessian(memory[k], w_g), covariance) for k in y)
        known = undamped(V, reached) + tau * in_memory
        yield Round(w_g, S_g, list(v), list(V), dict(y), S_g + tau * in_memory, delta=delta)


def bayes_admm(loss, clients, drawn, delta, rho, gamma, tau, alpha=None, covariance="diagonal", samples=0):
    """Möllenhoff et al. (2026): server (1 − α) mean_k q_k + α (p_0 + Σ_k t_k) in natural parameters, α = 1/(1 + ρK).

    A client counts with the last q_k it had, the prior before its first round. With `samples` it is as PVI for losses
    that are quadratic: with ℓ_k(w) = ½wᵀAw − bᵀw, the mean solves (A/τ − V + ρS_g) m = b/τ − v + ρS_g w_g.
    """
    P, K = size(clients), len(clients)
    alpha = 1 / (1 + rho * K) if alpha is None else alpha
    w_g, S_g = np.zeros(P), delta * np.eye(P)
    v, V = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients]
    m, S = [np.zeros(P) for _ in clients], [delta * np.eye(P) for _ in clients]
    for active in drawn:
        for k in active:
            if samples:
                A, b = loss.hessian(clients[k], np.zeros(P)), -loss.gradient(clients[k], np.zeros(P))
                m[k] = np.linalg.solve(A / tau - V[k] + rho * S_g, b / tau - v[k] + rho * S_g @ w_g)
            else:
                whole = energy(loss, clients[k], 1 / tau)
                m[k] = argmin(whole.plus(line(v[k]), square(-V[k]), square(rho * S_g, around=w_g)), w_g)
            S[k] = S_g + (structured(loss.hessian(clients[k], m[k]), covariance) / tau - V[k]) / rho
            gamma_k = damping(gamma, k, clients)
            v[k] = v[k] + gamma_k * rho * (S[k] @ m[k] - S_g @ w_g)
            V[k] = V[k] + gamma_k * rho * (S[k] - S_g)
        S_g = (1 - alpha) * sum(S) / K + alpha * (delta * np.eye(P) + sum(V))
        w_g = np.linalg.solve(S_g, (1 - alpha) * sum(S[k] @ m[k] for k in range(K)) / K + alpha * sum(v))
        yield Round(w_g, S_g, list(v), list(V))


def fedep(loss, clients, drawn, delta, rho, eta, covariance, shared=False):
    """Guo et al. (2023): cavity q_g/t_k, tilted moments by Laplace, t_k ← t_k (q_k/q_g)^ρ; all in natural parameters.

    Shared: t is the K-th root of q_g/p_0, and those drawn speak for all. The server takes the part η of its step.
    """
    P, K = size(clients), len(clients)
    eta_g, S_g = np.zeros(P), delta * np.eye(P)
    v, V = [np.zeros(P) for _ in clients], [np.zeros((P, P)) for _ in clients]
    for active in drawn:
        for k in active:
            if shared:
                v[k], V[k] = eta_g / K, (S_g - delta * np.eye(P)) / K
            cavity, S_cavity = eta_g - v[k], S_g - V[k]
            mode = argmin(energy(loss, clients[k]).plus(line(-cavity), square(S_cavity)), np.linalg.solve(S_g, eta_g))
            S_tilted = S_cavity + structured(loss.hessian(clients[k], mode), covariance)
            rho_k = damping(rho, k, clients)
            v[k], V[k] = v[k] + rho_k * (S_tilted @ mode - eta_g), V[k] + rho_k * (S_tilted - S_g)
        speaking = active if shared else range(K)
        eta_g = (1 - eta) * eta_g + eta * K / len(speaking) * sum(v[k] for k in speaking)
        S_g = (1 - eta) * S_g + eta * (delta * np.eye(P) + K / len(speaking) * sum(V[k] for k in speaking))
        yield Round(np.linalg.solve(S_g, eta_g), S_g, list(v), list(V))


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
    "scaffold": scaffold,
    "fednova": fednova,
    "fedopt": fedopt,
    "bcm": bcm,
    "pvi": pvi,
    "fedlap": fedlap,
    "fedlap_cov": fedlap_cov,
    "fedlap_func": fedlap_func,
    "fedlap_cov_func": fedlap_cov_func,
    "bayes_admm": bayes_admm,
    "fedep": fedep,
    "fedlap_kron": fedlap_kron,
}
