"""What makes two specs the same: what was said in their sections, whatever the specs are called."""

import dataclasses

from .algorithms import ALGORITHMS
from .arguments import OPEN, to_arguments
from .data import LOADERS
from .data.loaders import as_partition
from .identity import of, said
from .solvers import SERVER_SOLVERS, SOLVERS
from .spec import MODELS

MAKERS = {"model": MODELS, "solver": SOLVERS, "server_solver": SERVER_SOLVERS}


def of_spec(spec):
    """What was said in all sections: two specs that share it are of the same runs."""
    return {"federation": _federation(spec.federation), "train": _train(spec.train), **of_method(spec)}


def of_method(spec):
    """What was said of the model, the solvers and the algorithms."""
    algorithms = {
        name: said(ALGORITHMS[name], to_arguments(arguments, f"algorithms.{name}"))
        for name, arguments in spec.algorithms.items()
    }
    return {**{section: _named(section, getattr(spec, section)) for section in MAKERS}, "algorithms": algorithms}


def _named(section, table):
    arguments = dict(table)
    name = arguments.pop("name")
    return {name: said(MAKERS[section][name], to_arguments(arguments, section))}


def _federation(table):
    arguments = dict(table)
    name = arguments.pop("dataset")
    if "partition" in arguments:
        arguments["partition"] = as_partition(arguments["partition"])
    given = {key: of(arguments[key]) for key in OPEN if key in arguments}
    return {name: {**said(LOADERS[name], arguments), **given}}


def _train(train):
    """A participation of 1 is one client, of 1.0 all of them: a count is put into words."""
    arguments = {field.name: getattr(train, field.name) for field in dataclasses.fields(train)}
    if isinstance(train.participation, int):
        arguments["participation"] = f"{train.participation} clients"
    return said(type(train), arguments)
