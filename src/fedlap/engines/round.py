"""The round, written once: what a client does and what the server does. Engines only decide where."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import AnyAlgorithm, Client, Received
from fedlap.arrays import Array, Tree
from fedlap.engines import parties, sums
from fedlap.errors import ConfigError
from fedlap.solvers import Problem, ServerSolver, Solver

if TYPE_CHECKING:
    from fedlap.engines.setup import Setup  # which is made of what is defined here

Answer = Callable[[Callable[..., Any], Tree, Any], tuple[Tree, Any]]  # (objective, start, memory) → variable, memory


class ClientState(NamedTuple):
    """All that survives a round on one client, and the last it has sent."""

    factor: Tree
    solver: Tree
    contribution: Tree


class State(NamedTuple):
    """All that survives a round; a checkpoint is exactly this."""

    round: int  # on the host, so that asking for it does not wait for the device
    server: Any  # what the algorithm calls q_g
    start: Vector
    clients: Any  # factor, solver and contribution of every client, [K, …]: a ClientState, stacked, or Clients
    sums: Any = ()  # what the server's line adds up over all clients, where they are too many to do it anew


class Method(NamedTuple):
    """An algorithm and its solvers. Their numbers are leaves, so a sweep over them compiles once."""

    algorithm: AnyAlgorithm
    solver: Solver
    server_solver: ServerSolver


class Engine(Protocol):
    """What is asked of an engine, each of them a module."""

    @property
    def draws_ahead(self) -> bool: ...  # whether minibatches are drawn before a round, and not by the engine
    def prepare(self, setup: "Setup", state: State) -> State: ...
    def advance(self, setup: "Setup", state: State, drawn: np.ndarray, batches: Any) -> State: ...
    def regroup(self, setup: "Setup", state: State, clients: list["ClientState"]) -> State: ...


def client_round(
    setup: "Setup",
    broadcast: Tree,
    client: ClientState,
    shard: parties.Shard,
    batches: parties.Batches,
    moment: parties.Moment,
) -> ClientState:
    """Lines 1 and 2 of an algorithm on one client, which knows of the server's state what is broadcast."""
    algorithm = setup.method.algorithm
    k, minibatch = parties.client(setup, shard, moment, batches.steps)

    def solve(objective: Callable[..., Any], start: Tree, state: Tree) -> tuple[Tree, Tree]:
        problem = Problem(objective, start, k, minibatch, *batches, mean_loss=algorithm.mean_loss)
        return setup.method.solver.minimise(problem, state)

    q, solver = answered(lambda argmin: _update(algorithm, broadcast, client.factor, k, argmin), solve, client.solver)
    t = algorithm.factor_update(broadcast, client.factor, q, k)
    _check_kept(f"{type(algorithm).__name__}.factor_update", t, client.factor)
    return ClientState(t, solver, algorithm.contribution(t, q, k))


def server_round(setup: "Setup", server: Any, contributions: Tree, drawn: Array | None) -> Any:
    """Line 3 of an algorithm, on the server that has the last contribution of every client, [K, …].

    `drawn` says who took part in this round, [K]; None says that all did.
    """
    part = sums.Several(contributions, setup.shards.places, setup.pool.memory, drawn)
    line = server_line(setup, server, 1.0 if drawn is None else drawn.mean())
    return line(sums.asking(lambda wish: wish.finish(wish.of(part))))


def server_line(setup: "Setup", server: Any, participation: Any) -> Callable[[Received], Any]:
    """Line 3 of an algorithm as a function of what the server has received; what was said for good goes with it."""
    s = parties.server(setup, jax.tree.map(jnp.zeros_like, server.w), participation)
    said = lambda received: sums.with_past(received, setup.past, setup.pool.memory)
    algorithm = setup.method.algorithm

    def line(received: Received) -> Any:
        new = algorithm.server_update(server, said(received), s)
        _check_kept(f"{type(algorithm).__name__}.server_update", new, server)
        return new

    return line


@jax.jit
def initial(setup: "Setup") -> State:
    """The state before the first round, with one client for all: what a client that never moves would send."""
    algorithm = setup.method.algorithm
    start = Vector(setup.task.model.init(jax.random.fold_in(setup.key, 0), setup.pool.inputs[:1], setup.classes))
    zeros = jax.tree.map(jnp.zeros_like, start)
    g, t = algorithm.init(parties.server(setup, zeros, 1.0), start)
    if not isinstance(getattr(g, "w", None), Vector):
        raise ConfigError(
            f"{type(algorithm).__name__}.init: what the server knows is a {type(g).__name__} without a vector w, the "
            "model; expected a named tuple that has one, such as fedlap.Point(start)"
        )
    return State(0, g, start, _unmoved(setup, g, t, start, 0))


def _unmoved(setup: "Setup", server: Any, factor: Tree, start: Vector, place: Any) -> ClientState:
    """The client at a place with a factor, and what it would send if it stayed where it starts."""
    algorithm, shard = setup.method.algorithm, jax.tree.map(lambda leaf: leaf[place], setup.shards)
    k, _ = parties.client(setup, shard, parties.Moment(0, start, setup.key))
    broadcast = algorithm.broadcast(server)
    q, variable = answered(lambda argmin: _update(algorithm, broadcast, factor, k, argmin), _stay, ())
    jax.eval_shape(lambda: algorithm.factor_update(broadcast, factor, q, k))  # what cannot be asked for is said at once
    return ClientState(factor, setup.method.solver.init(variable), algorithm.contribution(factor, q, k))


newcomer = jax.jit(_unmoved)  # who joins later: with a neutral factor it starts, and stays, at w_g


@jax.jit
def score(setup: "Setup", broadcast: Tree, factor: Tree, place: Any, moment: parties.Moment) -> Tree:
    """∇ of client k's objective in line 1, on all its data and at q_g, where the moment starts: ∇ℓ_k + ∇log t_k.

    What keeps q near q_g has no slope there.
    """
    k, _ = parties.client(setup, jax.tree.map(lambda leaf: leaf[place], setup.shards), moment)

    def slope(objective: Callable[..., Any], start: Tree, before: object) -> tuple[Tree, Tree]:
        return start, jax.grad(lambda variable: objective(variable, k))(start)

    return answered(lambda argmin: _update(setup.method.algorithm, broadcast, factor, k, argmin), slope, ())[1]


def answered(update: Callable[[Callable], Any], answer: Answer, memory: Any) -> tuple[Any, Any]:
    """What `update(argmin)` gives, and what is remembered of its argmins.

    Each argmin is answered by `answer(objective, start, memory)` with a variable and the memory for the next, so that
    `w ← argmin …` stays one line in an algorithm and a solver's state goes in and comes out as a value.
    """
    memories = [memory]

    def argmin(objective: Callable[..., Any], start: Tree) -> Tree:
        variable, after = answer(objective, start, memories[-1])
        memories.append(after)
        return variable

    return update(argmin), memories[-1]


def _check_kept(line: str, given: Tree, before: Tree) -> None:
    """ConfigError unless a line gives what `init` gave, part by part: what comes out must go in again."""
    found, wanted = jax.tree.structure(given), jax.tree.structure(before)
    if found != wanted:
        raise ConfigError(f"{line} gives {_parts(given)}; expected {_parts(before)}, as init does")


def _parts(tree: Tree) -> str:
    """What a state is made of, without its numbers."""
    if not isinstance(tree, tuple):
        return type(tree).__name__
    names = getattr(tree, "_fields", ("",) * len(tree))
    parts = (f"{name} {type(part).__name__}".strip() for name, part in zip(names, tree, strict=True))
    return f"{type(tree).__name__}({', '.join(parts)})"


def _update(algorithm: AnyAlgorithm, broadcast: Tree, factor: Tree, k: Client, argmin: Callable) -> Any:
    return algorithm.client_update(broadcast, factor, k._replace(argmin=argmin))


def _stay(objective: object, start: Tree, before: object) -> tuple[Tree, Tree]:
    """An answer that stays where it starts, and remembers what argmin ranges over: weights, or a Gaussian."""
    return start, start
