"""Who is in a federation changes: a member leaves, joins, or goes on with newer data.

Pure functions of a run and its state, for methods whose server adds up what each client remembers:

    without   q_g ← p_0 Π_{others} t_k              the leaver's factor is divided out
    join      q_g ← p_0 Π_k t_k · 1                 the newcomer's factor says nothing yet
    update    q_g ← (p_0 t_old) Π_{others} t_k · 1  what old data have said is part of the prior for good

Each is the server's line over other terms. The rounds after it need no change: factors carry neither K nor N, and ρ,
which may, decides how fast a fixed point is reached and not which.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedlap.algorithms import ALGORITHMS
from fedlap.engines.clients import one_by_one
from fedlap.engines.parties import Moment
from fedlap.engines.round import ClientState, State, initial, newcomer, score, server_line
from fedlap.engines.setup import Past
from fedlap.engines.sums import Several, asked
from fedlap.errors import ConfigError

if TYPE_CHECKING:
    from fedlap.run.simulation import Simulation  # whose histories ask for this

Changed = tuple["Simulation", State]  # another run, and its state before the next round


def without(run: "Simulation", state: State, name: str) -> Changed:
    """The run after a member has left: its factor is divided out, and what its earlier data have said."""
    _check(run, "without")
    changed = run.among(run.federation.without(name), tuple(past for past in run.past if past.name != name))
    clients = dict(zip(run.federation.clients, _clients(run, state), strict=True))
    return changed, _regrouped(changed, state, [clients[other] for other in changed.federation.clients])


def join(run: "Simulation", state: State, name: str, data: Any) -> Changed:
    """The run after a member has joined, with (inputs, labels) and a factor that says nothing yet."""
    _check(run, "join")
    changed = run.among(run.federation.with_client(name, data), run.past)
    return _begun(changed, _regrouped(changed, state, [*_clients(run, state), None]))


def update(run: "Simulation", state: State, name: str, data: Any) -> Changed:
    """The run after a member has newer data: its factor so far is part of the prior, its old rows are gone."""
    _check(run, "update", whole=True)
    if run.algorithm.matrices:
        raise ConfigError(
            f"update: factors of {type(run.algorithm).__name__} are in a basis that turns, and what is said for good "
            "cannot turn with it; expected a method without a basis, such as FedLapCov"
        )
    federation, clients = run.federation.with_data(name, data), _clients(run, state)
    place = federation.clients.index(name)
    sent, silent = clients[place].contribution, initial(run.setup).clients.contribution
    if all(map(np.array_equal, jax.tree.leaves(sent), jax.tree.leaves(silent))):
        raise ConfigError(f"update: {name!r} has said nothing of its data so far; let it take part in a round first")
    memory = np.asarray(run.setup.pool.memory[run.setup.shards.places[place]])
    changed = run.among(federation, (*run.past, Past(name, run.algorithm.settled(sent), memory)))
    return _begun(changed, _regrouped(changed, state, [*clients[:place], None, *clients[place + 1 :]]))


def stationarity(run: "Simulation", state: State) -> float:
    """‖Σ_k (∇ℓ_k + ∇log t_k)‖ at q_g over the members.

    By the server's line, ∇log p_0 + Σ_k ∇log t_k = 0 there: it is the slope of the objective that pooling all members'
    data would have, Σ_k ℓ_k − log p_0, and zero where that is at its minimum.
    """
    _check(run, "stationarity", whole=True)
    broadcast = run.algorithm.broadcast(state.server)
    moment = Moment(state.round, state.server.w, run.setup.key)
    slopes = [
        score(run.setup, broadcast, client.factor, place, moment) for place, client in enumerate(_clients(run, state))
    ]
    total = jax.tree.map(lambda *leaves: sum(np.asarray(leaf, float) for leaf in leaves), *slopes)
    return float(np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(total))))


def _check(run: "Simulation", what: str, whole: bool = False) -> None:
    """ConfigError unless the server's line is made of factors, which can be taken out of it and added to it.

    Whole, unless something is left out: an update and a certificate need p_0 Π t_k, and not FedADMM's mean.
    """
    if jax.process_count() > 1:
        raise ConfigError(f"{what}: this run has several processes, each with some of the clients; expected one")
    if not run.algorithm.divides:
        raise ConfigError(
            f"{what}: the server of {run.algorithm} keeps a part of what it knew before, and so of who has left; "
            "expected a method whose model is the product of its factors, such as FedLapCov, FedEP(eta=1) or "
            "BayesADMM(alpha=1)"
        )
    factor, sums = _line(run)
    if not factor or "average" in sums or (whole and not run.algorithm.sends_factor):
        having = [known.__name__ for known in ALGORITHMS.values() if object.__new__(known).sends_factor]
        raise ConfigError(
            f"{what}: {type(run.algorithm).__name__} has no factor of each client whose product the server keeps; "
            f"expected a method that has, such as {', '.join(having)}"
        )


def _line(run: "Simulation") -> tuple[bool, set[str]]:
    """Whether clients remember anything, and which sums the server's line asks for."""
    asks: set[str] = set()

    def listen(setup: Any) -> None:
        state = initial(setup)
        sent = jax.tree.map(lambda leaf: leaf[None], state.clients.contribution)
        some = Several(sent, setup.shards.places[:1], setup.pool.memory)
        asks.update(asked(server_line(setup, state.server, 1.0), some))

    jax.eval_shape(listen, run.setup)
    return bool(jax.tree.leaves(jax.eval_shape(initial, run.setup).clients.factor)), asks


def _clients(run: "Simulation", state: State) -> list[ClientState]:
    """Each client's state with the last it has sent, which where clients are many is its factor and kept once."""
    clients = one_by_one(state.clients, len(run.federation.clients))
    sends_factor = run.algorithm.sends_factor
    return [client._replace(contribution=client.factor) if sends_factor else client for client in clients]


def _regrouped(run: "Simulation", state: State, clients: list[ClientState | None]) -> State:
    """The state of these clients, None for a newcomer, in the shapes of the run; the server's line goes over them."""
    first: ClientState = initial(run.setup).clients

    def settle_in(place: int, client: ClientState | None) -> ClientState:
        if client is not None:
            return jax.tree.map(_fitted, client, first)
        if run.algorithm.sends_factor:
            return first
        return newcomer(run.setup, state.server, first.factor, state.server.w, place)

    return run.engine.regroup(run.setup, state, [settle_in(*each) for each in enumerate(clients)])


def _begun(run: "Simulation", state: State) -> Changed:
    """The run, in which a newcomer of a one-shot method has had its shot."""
    return run, run.step(state) if run.one_shot else state


def _fitted(leaf: Any, like: Any) -> np.ndarray:
    """An array with the length of another one: who has fewer memory points than the most is padded with zeros."""
    fitted = np.zeros(like.shape, like.dtype)
    both = tuple(map(slice, np.minimum(np.shape(leaf), like.shape)))
    fitted[both] = np.asarray(leaf)[both]
    return fitted
