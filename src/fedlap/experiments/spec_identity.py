"""The identity of a spec: what is said in its sections, whatever the spec is called."""

import dataclasses

from fedlap.data import LOADERS
from fedlap.domains import from_run
from fedlap.experiments.spec import Spec, Train
from fedlap.identity import Form, of, said
from fedlap.settings.arguments import Table, to_arguments
from fedlap.settings.method import of_method


def of_spec(spec: Spec) -> dict[str, Form]:
    """The identity of a spec, section by section: two specs that share it are of the same runs."""
    return {"federation": _federation(spec.federation), "train": _train(spec.train), **of_method(spec)}


def _federation(table: Table) -> dict[str, Form]:
    """The identity of [federation]."""
    arguments = dict(table)
    name = arguments.pop("dataset")
    loader = LOADERS[name]
    arguments = to_arguments(loader, arguments, "federation")
    given = {key: of(arguments[key]) for key in from_run(loader) if key in arguments}
    return {name: {**said(loader, arguments), **given}}


def _train(train: Train) -> dict[str, Form]:
    """The identity of [train]. A participation of 1 is one client, of 1.0 all of them: a count is put into words."""
    arguments = {field.name: getattr(train, field.name) for field in dataclasses.fields(train)}
    if isinstance(train.participation, int):
        arguments["participation"] = f"{train.participation} clients"
    return said(type(train), arguments)
