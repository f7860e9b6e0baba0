"""The three lines every method is made of, and all that they may ask for.

    client_update   q_k ← argmin_q  ℓ_k + t_k + D(q, q_g)     on client k
    factor_update     t_k ← t_k + ρ (q_k − q_g)                 on client k, remembered there
    server_update   q_g ← p_0 + Σ_k t_k                       on the server

ADMM's dual variable and Bayes' factor, which the literature calls a site, are the same slot, t. Between the lines
stands `contribution`: the term of client k in the server's sum, which is exactly what leaves the client; `broadcast`
is what leaves the server.

How to read an algorithm: the letter before the dot is the paper's subscript, the letter after it the paper's
symbol. `g.w` is w_g, `q.S` is S_k, `t.v` is v_k, `k.loss(w)` is ℓ_k(w), `k.n` is N_k.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast, get_args

from fedlap.algebra.damping import damping
from fedlap.algebra.evidence import smallest
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.algebra.soft_labels import SoftLabels
from fedlap.algebra.vector import Vector

G = TypeVar("G")  # global: what the server knows
T = TypeVar("T")  # factor, or dual: what a client remembers between rounds
Q = TypeVar("Q")  # local: what a client has just fitted
C = TypeVar("C")  # contribution: what a client sends, its term under the server's Σ_k


class Nothing(NamedTuple):
    """The factor of a method that remembers nothing."""


class Point(NamedTuple):
    """A weight vector."""

    w: Vector


class Counted(NamedTuple):
    """A weight vector and the number of examples behind it."""

    w: Vector
    n: Any


class Dual(NamedTuple):
    """log t(w) = vᵀw, up to the algorithm's scale."""

    v: Vector


class Gaussian(NamedTuple):
    """N(w, S⁻¹)."""

    w: Vector
    S: Any


class DampedGaussian(NamedTuple):
    """N(w, S⁻¹), and the precision that S will have when damped factors have reached what they move to."""

    w: Vector
    S: Any
    ahead: Any  # the server's own
    delta: Any = None  # the server's own, where the evidence has chosen it


class Laplace(NamedTuple):
    """A client's minimum w and the curvature H of its loss there."""

    w: Vector
    H: Any


class Factor(NamedTuple):
    """log t(w) = vᵀw − ½wᵀVw."""

    v: Vector
    V: Any


class DampedFactor(NamedTuple):
    """A Factor that moves by ρ a round: by now it has reached the part 1 − Π(1 − ρ) of what it moves to."""

    v: Vector
    V: Any
    reached: Any


class Pace(Protocol):
    """What a local solver can say of its steps; what it cannot is a ConfigError."""

    @property
    def steps(self) -> Any: ...
    @property
    def rate(self) -> Any: ...
    def effective_steps(self, pull: Any) -> Any: ...


class Client(NamedTuple):
    """All that an algorithm may ask of client k. Inside an objective it is a minibatch of k."""

    n: Any  # N_k
    share: Any  # N_k / N
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  K, and not a tuple's count
    round: Any  # 0, 1, …
    start: Vector  # where the local optimiser begins: the network's init, then w_g
    loss: Callable[[Vector], Any]  # ℓ_k(w), a sum over the data, never a mean
    gradient: Callable[[Vector], Vector]  # ∇ℓ_k(w), of all data, also inside an objective
    hessian: Callable[[Vector, Any], Any]  # H_k(w), "diagonal" or "full", or in a basis
    turned: Callable[[Any], Callable[[Vector], Any]]  # of a basis U: x ↦ Ux for a loss, the data turned once for all x
    moments: Callable[[Vector, Any], Any]  # Σ aaᵀ and Σ ggᵀ of each layer that a basis turns
    memory_hessian: Callable[[Vector, str], Any]  # the same, of Σ_i τ_i ℓ(ŷ_i, w) over k's memory points
    soften: Callable[[Vector], SoftLabels]  # ŷ_k: predictions of w on k's memory points
    own: Callable[[SoftLabels], SoftLabels]  # those labels among all memory points
    everyone: Callable[[Vector, Any], SoftLabels]  # ŷ_g: predictions of w on all memory points
    distil: Callable[[Vector, SoftLabels], Any]  # Σ_i τ_i ℓ(ŷ_i, w)
    noise: Callable[[int, Vector], Vector]  # ε ~ N(0, I), so many draws shaped as a vector
    key: Any  # of jax.random, for all else that an algorithm draws: a new one each round, and each step of an objective
    argmin: Callable[[Callable[[Any, "Client"], Any], Any], Any]
    pace: "Pace"

    @property
    def steps(self) -> Any:
        """How many steps the local solver takes in this round."""
        return self.pace.steps

    @property
    def rate(self) -> Any:
        """η, where a step of the local solver is along the gradient of the objective, at the scale of a mean loss."""
        return self.pace.rate

    def effective_steps(self, pull: Any = None) -> Any:
        """‖a_k‖₁: how many plain steps all of the solver's are together, as momentum makes them longer.

        With ½ pull ‖w − w_g‖² in the objective, later steps undo some of the earlier.
        """
        return self.pace.effective_steps(pull)


class Received(NamedTuple):
    """All that the server's line may ask of what clients have sent. A term is a function of one client's contribution.

    `c.sum(lambda k: k.v)` is Σ_k v_k. A term reads the contribution and the algorithm's own numbers, and no other sum:
    where clients are many, each part of them is added up by itself, before the line is run.
    """

    sum: Callable[[Callable[[Any], Any]], Any]  # Σ_k term, over all clients: of each the last that it has sent
    mean: Callable[[Callable[[Any], Any]], Any]  # the same, divided by their number
    average: Callable[..., Any]  # of a term, over the clients drawn in this round; `weights=` is a term, too
    gather: Callable[[Callable[[Any], SoftLabels]], SoftLabels]  # all clients' labels, added up point by point


class Server(NamedTuple):
    """All that an algorithm may ask of the server."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  K, and not a tuple's count
    participation: Any  # the fraction of clients drawn in this round
    zero: Any
    zeros: Vector
    identity: Callable[[str], Any]  # I, "diagonal" or "full"
    basis: Callable[[], Any]  # U = I, for the layers that a basis turns
    unlabelled: SoftLabels  # the soft labels of a client that has not spoken
    silence: SoftLabels  # the labels of all memory points before anybody has spoken
    distil: Callable[[Vector, SoftLabels], Any]
    memory_hessian: Callable[[Vector, Any, str], Any]  # Σ mass_i ∇²ℓ(f(x_i; w), w), of all memory points
    argmin: Callable[[Callable[[Any], Any], Any], Any]


class Algorithm(ABC, Generic[G, T, Q, C]):
    """A federated algorithm: hyper-parameters and these seven pure methods, nothing else. Subclasses are final."""

    one_shot: ClassVar[bool] = False  # whether a second round of all clients would change nothing
    mean_loss: ClassVar[bool] = False  # whether client_update is stated on ℓ_k/N_k, and not on the sum ℓ_k
    curvatures: ClassVar[bool] = False  # whether every V is a curvature, and so never below zero
    matrices: ClassVar[bool] = False  # whether clients send matrices of moments, which say as much as a full covariance
    revision: ClassVar[int] = 1  # raised when the mathematics change: what ran before is then another run
    memory: int = 0  # how many inputs per class a client shows to the others; a hyper-parameter where it is chosen

    @abstractmethod
    def init(self, s: Server, start: Vector) -> tuple[G, T]:
        """q_g and t_k before the first round, for which the server line must already hold.

        Bayes begins at the prior, whose mean is zero; methods without one at `start`, the network's own weights.
        """

    def broadcast(self, g: G) -> G:
        """g as clients see it, with None for what only the server's line reads."""
        return g

    @abstractmethod
    def client_update(self, g: G, t: T, k: Client) -> Q: ...

    @abstractmethod
    def factor_update(self, g: G, t: T, q: Q, k: Client) -> T: ...

    @abstractmethod
    def contribution(self, t: T, q: Q, k: Client) -> C: ...

    @abstractmethod
    def server_update(self, g: G, c: Received, s: Server) -> G:
        """q_g after a round, from what the clients have sent."""

    def precision(self, g: G) -> Any:
        """How sure the method is by now: `g.precision`, or else `g.S`; None where a method has neither."""
        return getattr(g, "precision", getattr(g, "S", None))

    def precision_ahead(self, g: G) -> Any:
        """How sure the model is: `g.ahead`, the precision without the lag of damping, or else what `precision` says."""
        return getattr(g, "ahead", self.precision(g))

    def own_part(self, g: G, t: T) -> Any:
        """V_k as it stands in the S that the server has broadcast; None where a client has none."""
        return getattr(t, "V", None)

    def reaches(self, reached: Any, k: Any) -> Any:
        """What a factor that says it has `reached` so much says after one more round; None if that cannot be foretold.

        By a hyper-parameter `rho`, where there is one. Of k there are n, share, count and round.
        """
        rho = getattr(self, "rho", None)
        return None if rho is None else (1 - damping(rho, k)) * reached + damping(rho, k)

    def settled(self, t: T) -> T:
        """A factor without the lag of damping: all that its data have to say, as far as it says `reached`."""
        given = cast(Any, t)
        if not hasattr(given, "reached"):
            return t
        return given._replace(v=given.v / given.reached, V=given.V / given.reached, reached=0 * given.reached + 1)

    @property
    def least(self) -> Any:
        """The least that the prior is in every S, where there is a `delta`; else nothing is known of it."""
        return smallest(getattr(self, "delta", 0.0))

    @property
    def sends_factor(self) -> bool:
        """Whether t_k itself is what a client sends: the server then holds all that the client remembers.

        Asked with nothing but a factor, such a method's `contribution` gives that factor back.
        """
        t = cast(Any, object())
        try:
            return self.contribution(t, cast(Any, None), cast(Any, None)) is t
        except Exception:  # of whichever class: it asks for what is not there
            return False

    @property
    def divides(self) -> bool:
        """Whether q_g is made of p_0 and factors anew in every round, so that a factor can be divided out of it."""
        return True

    @property
    def expands(self) -> bool:
        """Whether V_k is made of curvatures of a loss, of which none is below zero: a client's local is a Laplace."""
        return any(Laplace in get_args(base) for base in getattr(type(self), "__orig_bases__", ()))


algorithm = hyperparameters
AnyAlgorithm = Algorithm[Any, Any, Any, Any]  # for whoever passes on what it does not look into
