"""A method as a settings file says it: a model, two solvers, and algorithms, each a name with arguments."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.documents import parse_toml
from fedlap.domains import domains_of, from_run, parameters
from fedlap.errors import ConfigError, unknown
from fedlap.identity import Form, said
from fedlap.models import MODELS
from fedlap.models.model import Trainable, as_model
from fedlap.registry import Registry, source_of
from fedlap.solvers import SERVER_SOLVERS, SOLVERS, ServerSolver, Solver

# Functions and classes by name, and tables of plain values that stand for their arguments -----------------------------

Makers = Mapping[str, Callable]
Table = dict[str, Any]


def keys(maker: Callable) -> list[str]:
    """The names a table may give to a class or a function."""
    return list(parameters(maker))


def defaults(makers: Makers, table: Table, section: str, selector: str) -> Table:
    """A table with all its defaults filled in; its key `selector` names the maker."""
    if selector not in table:
        raise ConfigError(f"{section}.{selector} is missing; expected one of {', '.join(makers)}")
    if not isinstance(table[selector], str):
        raise ConfigError(f"{section}.{selector} is {table[selector]!r}; expected one of {', '.join(makers)}")
    if table[selector] not in makers:
        raise unknown(f"{section}.{selector}", table[selector], makers)
    rest = {key: value for key, value in table.items() if key != selector}
    return {selector: table[selector], **fill(makers[table[selector]], rest, section)}


def fill(maker: Callable, table: Table, section: str) -> Table:
    """The arguments of a function or class as plain values: those given, and the defaults of the others.

    No default is filled in where a run has its own value.
    """
    known, of_maker, runs = parameters(maker), domains_of(maker), from_run(maker)
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    filled = {}
    for key, parameter in known.items():
        if key in table:
            filled[key] = of_maker[key].normal(f"{section}.{key}", table[key])
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{section}.{key} is missing")
        elif key not in runs:
            filled[key] = of_maker[key].format(parameter.default)
    return filled


def named(section: str, makers: Makers, table: Table) -> Any:
    """The thing that a filled table with a `name` stands for."""
    arguments = {key: value for key, value in table.items() if key != "name"}
    return make(makers[table["name"]], arguments, section)


def make(maker: Callable, arguments: Table, section: str) -> Any:
    """The thing that a maker makes of plain values."""
    return maker(**to_arguments(maker, arguments, section))


def to_arguments(maker: Callable, arguments: Table, section: str) -> Table:
    """Arguments as their maker takes them, from plain values."""
    of_maker = domains_of(maker)
    return {key: of_maker[key].read(f"{section}.{key}", value) for key, value in arguments.items()}


def plain_value(word: str) -> Any:
    """A word of the command line as TOML reads it, where a bare word is a string."""
    try:
        return parse_toml(f"value = {word}", "a value")["value"]
    except ConfigError:
        return word.strip()


# Methods --------------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Registry] = {"model": MODELS, "solver": SOLVERS, "server_solver": SERVER_SOLVERS}
USUAL = {"solver": "adam", "server_solver": "annealed"}  # where a file does not name one


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """[model], [solver], [server_solver] and the algorithms' tables, with every default written down."""

    model: Table
    solver: Table
    server_solver: Table
    algorithms: dict[str, Table]

    def make_algorithm(self, name: str | None = None) -> AnyAlgorithm:
        """The algorithm of that name, or the only one."""
        name = self.algorithm_name if name is None else name
        return make(ALGORITHMS[name], self.algorithms[name], f"algorithms.{name}")

    @property
    def algorithm_name(self) -> str:
        """The name of the only algorithm."""
        (name,) = self.algorithms
        return name

    def make_model(self) -> Trainable:
        """The model of [model]."""
        return as_model(named("model", MODELS, self.model))

    def make_solver(self) -> Solver:
        """The clients' solver of [solver]."""
        return named("solver", SOLVERS, self.solver)

    def make_server_solver(self) -> ServerSolver:
        """The server's solver of [server_solver]."""
        return named("server_solver", SERVER_SOLVERS, self.server_solver)

    def count_weights(self, inputs: int, classes: int) -> int:
        """How many weights the model has on rows of so many inputs; none is drawn."""
        model: Any = self.make_model()
        rows = jax.ShapeDtypeStruct((1, inputs), jnp.float32)
        tree = jax.eval_shape(lambda key: model.init(key, rows, classes), jax.random.key(0))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))

    def check(self) -> None:
        """Make everything: each maker checks its own arguments."""
        self.make_model()
        self.make_solver()
        self.make_server_solver()
        for name in self.algorithms:
            self.make_algorithm(name)

    def tables(self) -> dict[str, Table]:
        """The sections as TOML or JSON could hold them."""
        return {section: copy.deepcopy(getattr(self, section)) for section in (*MAKERS, "algorithms")}


def fill_sections(table: Table) -> dict[str, Table]:
    """[model], [solver] and [server_solver] with all their defaults."""
    sections = {key: {"name": usual, **table.get(key, {})} for key, usual in USUAL.items()}
    sections = {"model": table["model"], **sections}
    return {key: defaults(MAKERS[key], section, key, "name") for key, section in sections.items()}


def check_packaged(table: Table) -> None:
    """Refuse a method that is not all of this package: what comes from others may not name code to be run here."""
    for section, makers in {**MAKERS, "algorithm": ALGORITHMS}.items():
        name = table.get(section, {}).get("name", USUAL.get(section))
        if isinstance(name, str) and not makers.is_packaged(name):
            if name in makers:
                raise ConfigError(
                    f"{section}.name is {name!r}; a study runs at all its members and takes the package's own code "
                    f"alone: {', '.join(makers)}"
                )
            raise unknown(f"{section}.name", name, makers)


def of_method(settings: MethodSettings) -> dict[str, Form]:
    """The identity of a method: what was said of the model, the solvers and the algorithms."""
    algorithms = {
        name: said_of(ALGORITHMS[name], to_arguments(ALGORITHMS[name], arguments, f"algorithms.{name}"))
        for name, arguments in settings.algorithms.items()
    }
    return {**{section: _named(section, getattr(settings, section)) for section in MAKERS}, "algorithms": algorithms}


def _named(section: str, table: Table) -> dict[str, Form]:
    """The identity of a section that has a `name`."""
    arguments = dict(table)
    name = arguments.pop("name")
    maker = MAKERS[section][name]
    return {name: said_of(maker, to_arguments(maker, arguments, section))}


def said_of(maker: Callable, arguments: Table) -> dict[str, Form]:
    """The identity of what a maker makes; of a foreign one its code is a part."""
    return {**said(maker, arguments), **source_of(maker)}
