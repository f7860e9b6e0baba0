"""What the server's line asks of the contributions: sums over clients, whoever has them and wherever they are.

Each of them is linear in clients, so that it is added up from parts: of all clients at once, of a block of them, of
those on one device. A line is run once for every part, to hear what it asks for, and once more with the answers.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.algebra.soft_labels import Memory, SoftLabels
from fedlap.algorithms.base import AnyAlgorithm, Received
from fedlap.arrays import Array, Tree
from fedlap.errors import ConfigError


class Several(NamedTuple):
    """Some clients: what each has sent, [D, …], and where the server finds it among its memory points."""

    sent: Tree
    places: Array  # [D, m]
    memory: Array  # the inputs of all memory points, for their number
    drawn: Array | None = None  # [D] whether a client took part in this round; all if None
    real: Array | None = None  # [D] whether it is a client and not padding; all if None


class Said(NamedTuple):
    """What somebody has said for good, a term of the server's sums: one contribution, and its memory points."""

    sent: Tree
    places: Array  # [m]


class Wish(NamedTuple):
    """A sum that the server's line asks for."""

    of: Callable[[Several], Tree]  # the part of some clients
    finish: Callable[[Tree], Any]  # from the sum of all parts to what was asked for
    lasting: bool  # whether it is over all clients, of each the last, and not over those drawn in this round
    first: Callable[[Tree, Array, Array], Tree]  # the same of all clients while they have all sent the same


Answer = Callable[[Wish], Any]

# Up to so many clients are added one to the other. XLA:CPU is some thirty times slower at a sum over the first axis,
# which is what counts where vectors are long; where clients are many in one program, vectors are short.
UNROLLED = 32


def asking(answer: Answer) -> Received:
    """What the server's line is given: each of its wishes goes to `answer`."""

    def sum(term: Callable[[Any], Any]) -> Any:
        def first(sent: Tree, places: Array, memory: Array) -> Tree:
            return jax.tree.map(lambda leaf: len(places) * leaf, term(sent))

        return answer(Wish(lambda part: _add_up(jax.vmap(term)(part.sent), part.real), _same, True, first))

    def mean(term: Callable[[Any], Any]) -> Any:
        def of(part: Several) -> Tree:
            count = part.places.shape[0] if part.real is None else part.real.sum()
            return _add_up(jax.vmap(term)(part.sent), part.real), jnp.asarray(count, float)

        def first(sent: Tree, places: Array, memory: Array) -> Tree:
            return jax.tree.map(lambda leaf: len(places) * leaf, term(sent)), jnp.asarray(len(places), float)

        return answer(Wish(of, _ratio, True, first))

    def average(term: Callable[[Any], Any], weights: Callable[[Any], Any] | None = None) -> Any:
        def of(part: Several) -> Tree:
            count = len(jax.tree.leaves(part.sent)[0])
            shares = jnp.ones(count) if weights is None else jax.vmap(weights)(part.sent)
            for mask in (part.drawn, part.real):
                shares = shares if mask is None else jnp.where(mask > 0, shares, 0)
            values = _masked(jax.vmap(term)(part.sent), part.real)
            return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), values), shares.sum()

        return answer(Wish(of, _ratio, False, lambda *_: None))

    def gather(term: Callable[[Any], SoftLabels]) -> SoftLabels:
        def of(part: Several) -> SoftLabels:
            labels = _masked(jax.vmap(term)(part.sent), part.real)
            return Memory(part.memory, part.places).place(labels)

        def first(sent: Tree, places: Array, memory: Array) -> SoftLabels:
            return Memory(memory, places).place(term(sent))

        return answer(Wish(of, _same, True, first))

    return Received(sum, mean, average, gather)


def with_past(received: Received, past: Sequence[Said], memory: Array) -> Received:
    """What the server's line is given when some have spoken for good, and are clients no more.

    Each sum over all clients has their terms too; means and averages are over who is a client now.
    """
    if not past:
        return received

    def sum(term: Callable[[Any], Any]) -> Any:
        terms = [term(said.sent) for said in past]
        return jax.tree.map(lambda *leaves: functools.reduce(operator.add, leaves), received.sum(term), *terms)

    def gather(term: Callable[[Any], SoftLabels]) -> SoftLabels:
        labels = [Memory(memory, said.places).place(term(said.sent)) for said in past]
        return functools.reduce(operator.add, labels, received.gather(term))

    return received._replace(sum=sum, gather=gather)


def asked(line: Callable[[Received], Any], some: Several) -> set[str]:
    """Which sums a run of the server's line asks for, by their names in `Received`; `some` are any clients."""
    names: set[str] = set()
    received = asking(lambda wish: wish.finish(wish.of(some)))

    def noting(name: str) -> Callable[..., Any]:
        def answer(*term: Any, **weights: Any) -> Any:
            names.add(name)
            return getattr(received, name)(*term, **weights)

        return answer

    line(Received(*map(noting, Received._fields)))
    return names


def heard(line: Callable[[Received], Any], answer: Answer) -> list[Any]:
    """Every answer of a run of the server's line, in the order it asked."""
    answers: list[Any] = []

    def note(wish: Wish) -> Any:
        answers.append(answer(wish))
        return wish.finish(answers[-1])

    line(asking(note))
    return answers


def parts(line: Callable[[Received], Any], now: Several, before: Several | None = None) -> list[Tree]:
    """What some clients add to each sum that the line asks for.

    With what they had sent `before`, it is the change that they make to those that last.
    """

    def answer(wish: Wish) -> Tree:
        found = wish.of(now)
        if before is None or not wish.lasting:
            return found
        return jax.tree.map(jnp.subtract, found, wish.of(before))

    return heard(line, answer)


def check_terms(algorithm: AnyAlgorithm, line: Callable[..., Any], server: Any, some: Several) -> None:
    """ConfigError if a term reads what it may not: then a sum could not be added up from parts.

    A term of `sum` or `gather` is a function of the contribution and the algorithm's numbers; of `average` it may read
    the server's state too. `line(server, participation)` is the server's line, `some` any clients.
    """
    part = lambda wish: wish.of(some)
    answers = jax.eval_shape(lambda: heard(line(server, 1.0), part))

    def terms(server: Any, participation: Any, answers: list[Any]) -> tuple[list[Tree], list[Tree]]:
        given, lasting, fresh = iter(answers), [], []

        def answer(wish: Wish) -> Any:
            (lasting if wish.lasting else fresh).append(part(wish))
            return next(given)

        heard(line(server, participation), answer)
        return lasting, fresh

    traced = jax.make_jaxpr(terms)(server, 1.0, answers).jaxpr
    known = len(jax.tree.leaves((server, 1.0)))
    lasting = len(jax.tree.leaves(jax.eval_shape(terms, server, 1.0, answers)[0]))
    if _reaches(traced, traced.invars, traced.outvars[:lasting]) or _reaches(
        traced, traced.invars[known:], traced.outvars[lasting:]
    ):
        raise ConfigError(
            f"{type(algorithm).__name__}: a term of c.sum, c.gather or c.average reads what is none of the client's; "
            "expected a function of one contribution and the algorithm's numbers, as c.sum(lambda k: k.v)"
        )


def _reaches(program: Any, sources: Sequence[Any], ends: Sequence[Any]) -> bool:
    """Whether an output of a traced program depends on one of these inputs."""
    from jax.extend.core import Literal  # with Pallas, whose import takes as long as that of all algorithms

    reached = set(sources)
    for equation in program.eqns:
        if any(not isinstance(each, Literal) and each in reached for each in equation.invars):
            reached.update(equation.outvars)
    return any(not isinstance(each, Literal) and each in reached for each in ends)


def given(answers: Iterator[Any]) -> Received:
    """What the server's line is given when all its wishes are answered already, in the order it asks."""
    return asking(lambda wish: wish.finish(next(answers)))


def _add_up(stacked: Tree, real: Array | None) -> Tree:
    def add(rows: Array) -> Array:
        return rows.sum(0) if len(rows) > UNROLLED else functools.reduce(operator.add, rows)

    return jax.tree.map(add, _masked(stacked, real))


def _masked(stacked: Tree, real: Array | None) -> Any:
    """Zeros for padding: whatever its numbers are, they are nobody's."""
    if real is None:
        return stacked
    return jax.tree.map(lambda leaf: jnp.where(real.reshape((-1,) + (1,) * (leaf.ndim - 1)) > 0, leaf, 0), stacked)


def _same(total: Tree) -> Tree:
    return total


def _ratio(total: tuple[Tree, Array]) -> Tree:
    return jax.tree.map(lambda leaf: leaf / total[1], total[0])
