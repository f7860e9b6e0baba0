"""A method as a settings file says it: a model, two solvers, and algorithms, each a name with arguments."""

import copy
from dataclasses import dataclass

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.identity import Form, said
from fedlap.models import MODELS
from fedlap.models.model import Trainable
from fedlap.settings.arguments import Makers, Table, defaults, make, named, to_arguments
from fedlap.solvers import SERVER_SOLVERS, SOLVERS, ServerSolver, Solver

MAKERS: dict[str, Makers] = {"model": MODELS, "solver": SOLVERS, "server_solver": SERVER_SOLVERS}
USUAL = {"solver": "adam", "server_solver": "descent"}  # where a file does not name one


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
        return named("model", MODELS, self.model)

    def make_solver(self) -> Solver:
        """The clients' solver of [solver]."""
        return named("solver", SOLVERS, self.solver)

    def make_server_solver(self) -> ServerSolver:
        """The server's solver of [server_solver]."""
        return named("server_solver", SERVER_SOLVERS, self.server_solver)

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


def of_method(settings: MethodSettings) -> dict[str, Form]:
    """The identity of a method: what was said of the model, the solvers and the algorithms."""
    algorithms = {
        name: said(ALGORITHMS[name], to_arguments(ALGORITHMS[name], arguments, f"algorithms.{name}"))
        for name, arguments in settings.algorithms.items()
    }
    return {**{section: _named(section, getattr(settings, section)) for section in MAKERS}, "algorithms": algorithms}


def _named(section: str, table: Table) -> dict[str, Form]:
    """The identity of a section that has a `name`."""
    arguments = dict(table)
    name = arguments.pop("name")
    maker = MAKERS[section][name]
    return {name: said(maker, to_arguments(maker, arguments, section))}
