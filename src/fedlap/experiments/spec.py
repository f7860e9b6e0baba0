"""Experiments as data: a TOML file, or the bundled one, as frozen dataclasses; every key is checked.

[federation]   dataset and the arguments of its function in fedlap.data; or files = {site = "its.csv", …} and a target
[model]        name and the arguments of its function in fedlap.models
[solver]       name and the arguments of its class in fedlap.solvers; [server_solver] likewise
[train]        rounds, seeds, participation, target_accuracy
[algorithms]   one table a method: the arguments of its class
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.checks import is_number
from fedlap.data import LOADERS, load
from fedlap.data.federation import Federation
from fedlap.documents import parse_toml, read_toml
from fedlap.domains import COUNT, FromRun, from_run
from fedlap.engines.setup import everyone
from fedlap.errors import ConfigError, unknown
from fedlap.identity import Form, of, said
from fedlap.settings import (
    MAKERS,
    USUAL,
    MethodSettings,
    Table,
    defaults,
    fill,
    fill_sections,
    keys,
    of_method,
    plain_value,
    said_of,
    to_arguments,
)
from fedlap.streams import check_seeds

SECTIONS = ("federation", "model", "solver", "server_solver", "train", "algorithms")


@dataclass(frozen=True)
class Train:
    """[train]: how long to train, with which seeds, and on whom."""

    rounds: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)
    participation: float | int = 1.0
    target_accuracy: float | None = None

    def rounds_of(self, algorithm: type[AnyAlgorithm]) -> int:
        """The number of rounds of an algorithm: one of a one-shot method, if all clients take part in it."""
        return 1 if algorithm.one_shot and everyone(self.participation) else self.rounds


@dataclass(frozen=True, kw_only=True)
class Spec(MethodSettings):
    """A resolved experiment: nothing in it is left to a default that is not written down here."""

    name: str
    federation: Table
    train: Train

    def make_federation(self, seed: int, data_dir: str | Path | None = None) -> Federation:
        """The data set, divided among its clients."""
        return load(**self.federation_arguments(seed, data_dir))

    def federation_arguments(self, seed: int, data_dir: str | Path | None = None) -> Table:
        """The data set's name and the arguments of its function. Not every data set is divided anew for every seed."""
        options = dict(self.federation)
        name = options.pop("dataset")
        for key, source in from_run(LOADERS[name]).items():
            if source is FromRun.SEED:
                options.setdefault(key, seed)
            elif data_dir is not None:
                options[key] = str(data_dir)
        return {"name": name, **options}

    def as_dict(self) -> Table:
        """The sections as TOML or JSON could hold them; `resolve` makes the same spec of them."""
        train = {**dataclasses.asdict(self.train), "seeds": list(self.train.seeds)}
        sections = {**self.tables(), "federation": copy.deepcopy(self.federation), "train": train}
        return {"name": self.name, **{section: sections[section] for section in SECTIONS}}


def bundled(name: str) -> str:
    """The text of a spec that ships with the package."""
    return resources.files("fedlap.experiments").joinpath(f"specs/{name}.toml").read_text()


def is_file(word: str) -> bool:
    """Whether a word of the command line is a settings file; one that is neither that nor an algorithm is refused."""
    if word.rstrip("/").endswith(".toml"):
        return True
    if word in ALGORITHMS or not Path(word).exists():
        return False
    reason = "is a folder" if Path(word).is_dir() else "its name does not end in .toml"
    raise ConfigError(f"{word}: {reason}; expected a settings file, NAME.toml, or some of {', '.join(ALGORITHMS)}")


def read_table(path: str | Path | None = None) -> tuple[str, Table]:
    """The name and the contents of a settings file, or of the bundled one."""
    if path is None:
        return "heart", parse_toml(bundled("heart"), "heart.toml")
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; expected a TOML file")
    return path.stem, _beside(path, read_toml(path))


def _beside(path: Path, table: Table) -> Table:
    """Settings whose data are files: they are named as they lie beside the settings, and found from anywhere."""
    federation = table.get("federation")
    if not isinstance(federation, dict) or "files" not in federation:
        return table
    place = lambda word: str((path.parent / word).resolve()) if isinstance(word, str) and word != "none" else word
    named = federation["files"]
    if isinstance(named, dict):
        federation["files"] = {name: place(file) for name, file in named.items()}
    if "test" in federation:
        federation["test"] = place(federation["test"])
    return {**table, "federation": {"dataset": "files", **federation}}


def resolve(name: str, table: Table, algorithms: Sequence[str] = (), overrides: Sequence[str] = ()) -> Spec:
    """A table of settings as a spec, checked key by key and with the defaults filled in."""
    table = copy.deepcopy(table)
    check_sections(table)
    keep_algorithms(table, algorithms)
    check_algorithms(table["algorithms"])
    for text in overrides:
        override(table, text)
    filled = {key: fill(ALGORITHMS[key], value, f"algorithms.{key}") for key, value in table["algorithms"].items()}
    spec = Spec(
        name=name,
        federation=defaults(LOADERS, table["federation"], "federation", "dataset"),
        train=_train(table.get("train", {})),
        algorithms=filled,
        **fill_sections(table),
    )
    spec.check()
    return spec


def check_sections(table: Table) -> None:
    """Check that every section is known and a table, and that the necessary ones are there, and the algorithms."""
    for section, value in table.items():
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
        if not isinstance(value, dict):
            raise ConfigError(f"{section} is {value!r}; expected a table, [{section}]")
    for section in ("federation", "model", "algorithms"):
        if section not in table:
            raise ConfigError(f"[{section}] is missing")
    for algorithm, settings in table["algorithms"].items():
        if algorithm not in ALGORITHMS:
            raise unknown("algorithm", algorithm, ALGORITHMS)
        if not isinstance(settings, dict):
            raise ConfigError(f"algorithms.{algorithm} is {settings!r}; expected a table, which may be empty: {{}}")


def keep_algorithms(table: Table, algorithms: Sequence[str]) -> None:
    """Leave only these in a table of settings; one that it does not have comes with its defaults. None named: all."""
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            raise unknown("algorithm", algorithm, ALGORITHMS)
    if algorithms:
        table["algorithms"] = {algorithm: table["algorithms"].get(algorithm, {}) for algorithm in algorithms}


def check_algorithms(table: Table) -> None:
    """Check that [algorithms] names one at least."""
    if not table:
        raise ConfigError(f"[algorithms] is empty; expected some of {', '.join(ALGORITHMS)}")


def override(table: Table, text: str) -> None:
    """Set `key=value` in a table of settings, wherever that key belongs."""
    places, value = parse_override(table, text)
    for section, name in places:
        (table["algorithms"] if section in ALGORITHMS else table).setdefault(section, {})[name] = value


def parse_override(table: Table, text: str) -> tuple[list[tuple[str, str]], Any]:
    """The places a `key=value` sets, each a section or an algorithm with a key of it, and the value."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f'--set {text}: expected key=value, for example "delta=0.1"')
    value = plain_value(value)
    places = _places(table)
    if "." in key:
        section, _, name = key.removeprefix("algorithms.").rpartition(".")
        matches = [place for place in places if place == (section, name)]
    else:
        matches = [place for place in places if place[1] == key]
    sections = {section for section, _ in matches}
    if not matches:
        known = sorted({name for _, name in places} | {".".join(place) for place in places})
        raise unknown("key", key, known)
    if len(sections) > 1 and not sections <= set(ALGORITHMS):
        options = ", ".join(".".join(place) for place in matches)
        raise ConfigError(f'--set {text}: "{key}" may mean {options}; write one of these')
    return matches, value


def _places(table: Table) -> list[tuple[str, str]]:
    """Every key that may be set, with the section or algorithm it belongs to."""
    makers = {
        "federation": LOADERS.get(table["federation"].get("dataset")),
        **{section: MAKERS[section].get(table.get(section, {}).get("name", USUAL.get(section))) for section in MAKERS},
        "train": Train,
        **{algorithm: ALGORITHMS[algorithm] for algorithm in table["algorithms"]},
    }
    selectors = [(section, "name") for section in MAKERS] + [("federation", "dataset")]
    return [(section, key) for section, maker in makers.items() if maker for key in keys(maker)] + selectors


def _train(table: Table) -> Train:
    """[train], checked."""
    train = fill(Train, table, "train")
    rounds, target = train["rounds"], train["target_accuracy"]
    COUNT.check("train.rounds", rounds)
    train["seeds"] = check_seeds("train.seeds", train["seeds"])
    if target is not None and not (is_number(target) and 0 < target <= 1):
        raise ConfigError(f"train.target_accuracy is {target!r}; expected a fraction above 0 and at most 1")
    return Train(**train)


# Identity: what is said in its sections, whatever the spec is called --------------------------------------------------


def of_spec(spec: Spec) -> dict[str, Form]:
    """The identity of a spec, section by section: two specs that share it are of the same runs."""
    return {"federation": _said_of_federation(spec.federation), "train": _said_of_train(spec.train), **of_method(spec)}


def _said_of_federation(table: Table) -> dict[str, Form]:
    """The identity of [federation]."""
    arguments = dict(table)
    name = arguments.pop("dataset")
    loader = LOADERS[name]
    arguments = to_arguments(loader, arguments, "federation")
    given = {key: of(arguments[key]) for key in from_run(loader) if key in arguments}
    return {name: {**said_of(loader, arguments), **given}}


def _said_of_train(train: Train) -> dict[str, Form]:
    """The identity of [train]. A participation of 1 is one client, of 1.0 all of them: a count is put into words."""
    arguments = {field.name: getattr(train, field.name) for field in dataclasses.fields(train)}
    if isinstance(train.participation, int):
        arguments["participation"] = f"{train.participation} clients"
    return said(type(train), arguments)
