"""A settings file as the runs it stands for. One without [sweep] has a run for every algorithm and seed.

[sweep]
validation = 0.2          of each client's rows, held out to choose a setting by; 0 if nothing is to be chosen
search_seeds = [62]       seeds of the search; those of [train] if not given
finals = "winners"        train on all rows "all" settings, or only the "winners" of the search
watch_train = true        record accuracy and NLL on the training rows too
precision = "float64"     of all runs; that of the process if not given

[sweep.every]             axes of all algorithms, for example epochs = [1, 5, 10]
[sweep.fedlap]            axes of one of them, for example delta = [1.0, 0.1] or "server_solver.steps" = [100, 1000]
[sweep.part.fedlap]       fewer values of some of these: a part of the grid that has winners of its own, a paper's say
"""

import copy
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.checks import is_number
from fedlap.domains import Domain, domains_of
from fedlap.errors import ConfigError, unknown
from fedlap.experiments.spec import (
    Spec,
    Train,
    check_algorithms,
    check_sections,
    keep_algorithms,
    of_spec,
    override,
    parse_override,
    read_table,
    resolve,
)
from fedlap.settings import Makers, Table, keys, plain_value
from fedlap.solvers import SERVER_SOLVERS, SOLVERS
from fedlap.streams import check_seeds

if TYPE_CHECKING:
    from fedlap.experiments.results import Result  # which are of cells


# A cell: one run, with a digest that tells it from others -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: an algorithm with one setting and one seed, on all rows or with some of them held out."""

    algorithm: str
    setting: Table  # the swept keys and their values
    seed: int
    held_out: float
    spec: Spec  # with this algorithm and this seed only

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that a spec says and that can change a result: two cells that share it are the same.

        That is not the name of a file, nor an accuracy to look out for. [server_solver] counts for every method, even
        for those whose server minimises nothing.
        """
        spec = replace(self.spec, train=replace(self.spec.train, target_accuracy=None))
        return identity.digest({**of_spec(spec), "held_out": identity.of(self.held_out)})[:16]

    @property
    def revision(self) -> int:
        """The revision of the algorithm."""
        return ALGORITHMS[self.algorithm].revision

    @property
    def rounds(self) -> int:
        """The number of rounds, one of a one-shot method."""
        return self.spec.train.rounds_of(ALGORITHMS[self.algorithm])

    @property
    def epochs(self) -> int:
        """The solver's epochs in a round; 1 if it has none."""
        return self.spec.solver.get("epochs", 1)

    @property
    def cost(self) -> float:
        """A number proportional to the steps of a run, to weigh what is left against what is done."""
        return self.rounds * self.epochs * (1 - self.held_out)


# Axes: the keys of a spec that they set, and checks of both -----------------------------------------------------------

Axes = dict[str, list[Any]]  # of an algorithm: the values of each key that is swept


def place(algorithm: str, key: str) -> tuple[str, str]:
    """The section and the key that an axis sets: those it names, or the algorithm's own, or else the solver's."""
    section, dot, name = key.partition(".")
    if dot:
        return section, name
    return (algorithm if key in keys(ALGORITHMS[algorithm]) else "solver"), key


def check_axes(algorithm: str, axes: Mapping[str, Any], table: Table) -> None:
    """Check that each axis of an algorithm sets a key that there is, none twice, and has a list of values."""
    places = {}
    for key, values in axes.items():
        section, name = place(algorithm, key)
        if places.setdefault((section, name), key) != key:
            both = f"{places[section, name]} and {key}"
            raise ConfigError(f"sweep.{algorithm}: {both} are the same axis; expected one of them")
        makers = _makers(algorithm, table)
        if section not in makers or name not in keys(makers[section]):
            known = [*keys(ALGORITHMS[algorithm]), *keys(makers["solver"])]
            known += [f"server_solver.{argument}" for argument in keys(makers["server_solver"])]
            raise unknown(f"key in [sweep.{algorithm}]", key, known)
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{algorithm}.{key} is {values!r}; expected a list of values")


def check_part(part: Mapping[str, Any], axes: Mapping[str, Axes]) -> None:
    """Check that a part of a grid names some values of some axes of some algorithms."""
    for algorithm, of_part in part.items():
        if algorithm not in axes:
            raise unknown("algorithm in [sweep.part]", algorithm, axes)
        if not isinstance(of_part, dict):
            raise ConfigError(f"sweep.part.{algorithm} is {of_part!r}; expected a section with lists of values")
        for key, values in of_part.items():
            if key not in axes[algorithm]:
                raise unknown(f"axis in [sweep.part.{algorithm}]", key, axes[algorithm])
            known = axes[algorithm][key]
            if not isinstance(values, list) or not values or not all(value in known for value in values):
                raise ConfigError(f"sweep.part.{algorithm}.{key} is {values!r}; expected a list of some of {known}")


def domain(algorithm: str, key: str, table: Table) -> Domain:
    """The domain of the key that an axis sets."""
    section, name = place(algorithm, key)
    return domains_of(_makers(algorithm, table)[section])[name]


def split_values(text: str) -> list[str]:
    """The values of `--only KEY=VALUE,VALUE`, in which a table or a list may have commas of its own."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def means(word: str, value: Any, of: Domain) -> bool:
    """Whether a word of the command line stands for a value of the file, both of a domain."""
    wanted = _form(value, of)
    return word == value or (wanted is not None and any(_form(plain, of) == wanted for plain in _readings(word)))


def _readings(word: str) -> Iterator[Any]:
    """The values that a word may be: one of TOML, itself, or a number that Python knows and TOML does not, as `.1`."""
    yield plain_value(word)
    yield word
    try:
        yield float(word)
    except ValueError:
        return


def _form(plain: Any, of: Domain) -> str | None:
    """A text that two plain values share if they stand for the same; None of one that stands for nothing."""
    try:
        return identity.text(identity.of(of.read("a value", plain)))
    except ConfigError:
        return None


def _makers(algorithm: str, table: Table) -> dict[str, Callable]:
    """The classes whose arguments an axis may set: the algorithm, [solver] and [server_solver]."""
    by_section: dict[str, Callable] = {algorithm: ALGORITHMS[algorithm]}
    solvers: dict[str, tuple[Makers, str]] = {
        "solver": (SOLVERS, "adam"),
        "server_solver": (SERVER_SOLVERS, "annealed"),
    }
    for section, (makers, default) in solvers.items():
        name = table.get(section, {}).get("name", default)
        if not isinstance(name, str) or name not in makers:
            raise unknown(f"{section}.name", name, makers)
        by_section[section] = makers[name]
    return by_section


# The sweep ------------------------------------------------------------------------------------------------------------

OPTIONS: Table = {"validation": 0.2, "search_seeds": None, "finals": "all", "watch_train": False, "precision": None}
FINALS = ("all", "winners")
PRECISIONS = ("float32", "float64")
EVERY, PART = "every", "part"


@dataclass(frozen=True)
class Sweep:
    """All settings of all algorithms; without [sweep], the one of each that the file gives."""

    name: str
    table: Table  # the spec without its [sweep]
    axes: dict[str, Axes]
    validation: float
    search_seeds: tuple[int, ...]
    final_seeds: tuple[int, ...]
    finals: str
    watch_train: bool
    precision: str | None
    part: dict[str, Axes]  # of some algorithms: fewer values of some axes
    section: Table | None  # [sweep] as it was written; None if there is none
    only: tuple[str, ...] = ()  # how the axes were narrowed

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The names of the algorithms that run, in the order of the file."""
        return tuple(self.axes)

    @property
    def is_grid(self) -> bool:
        """Whether the file has a [sweep]."""
        return self.section is not None

    def as_dict(self) -> Table:
        """A table of which `again` makes the same sweep: of a grid as it was written, else with every default."""
        if not self.is_grid:
            return resolve(self.name, self.table).as_dict()
        chosen = {"sweep": self.section, "chosen": list(self.algorithms), "only": list(self.only)}
        return {"name": self.name, **self.table, **chosen}

    def settings(self, algorithm: str) -> list[Table]:
        """All settings of an algorithm: every choice of one value of each of its axes."""
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def in_part(self, algorithm: str, setting: Table) -> bool:
        """Whether a setting lies in the part of the grid that has winners of its own; all do if none is named."""
        return all(setting[key] in values for key, values in self.part.get(algorithm, {}).items())

    def narrow(self, restrictions: Sequence[str]) -> "Sweep":
        """A part of the grid: `epochs=5` or `delta=0.1,1` keeps these values of that axis, wherever it is swept."""
        axes = {name: dict(of_algorithm) for name, of_algorithm in self.axes.items()}
        for text in restrictions:
            key, _, values = text.partition("=")
            wanted = split_values(values)
            of_axis = {name: domain(name, key, self.table) for name in axes if key in axes[name]}
            if not of_axis:
                raise unknown("axis", key, dict.fromkeys(itertools.chain(*axes.values())))
            known = [(value, of_axis[name]) for name in of_axis for value in self.axes[name][key]]
            for word in wanted:
                if not any(means(word, value, of) for value, of in known):
                    had = ", ".join(dict.fromkeys(str(value) for value, _ in known))
                    raise ConfigError(f"--only {text}: {key} has no value {word!r}; it has {had}")
            for name, of in of_axis.items():
                kept = [value for value in axes[name][key] if any(means(word, value, of) for word in wanted)]
                if not kept:
                    had = ", ".join(map(str, self.axes[name][key]))
                    raise ConfigError(
                        f"--only {text}: leaves nothing of {name}'s {key}, which has {had}; add one of these, "
                        f"as in --only {key}=VALUE,VALUE, or name the algorithms to run"
                    )
                axes[name][key] = kept
        return replace(self, axes=axes, only=(*self.only, *restrictions))

    def select(self, results: Collection["Result"]) -> list["Result"]:
        """The last result of each of its cells, with the cell's own setting: the result's may be of an older grid.

        They are in the order of the grid, whichever finished first: of settings that do equally well, the first wins.
        All seeds of a setting are of one revision and one precision, so that no mean is of two methods: of the newest
        that has run, in the precision in which most seeds did.
        """
        settings = {cell.digest: cell.setting for cell in (*self.search(), *self.final())} if results else {}
        last = {(run.cell, run.precision): run for run in results if self.precision in (None, run.precision)}
        alike = {}
        for digest, precision in last:
            if digest in settings:
                run = replace(last[digest, precision], setting=settings[digest])
                alike.setdefault(run.group, {}).setdefault((run.revision, precision), []).append(run)
        best = (max(runs.items(), key=lambda item: (item[0][0], len(item[1]))) for runs in alike.values())
        found = {run.cell: run for _, runs in best for run in runs}
        return [found[digest] for digest in settings if digest in found]

    def search(self) -> list[Cell]:
        """The cells to choose by, with validation rows held out: none of an algorithm with one setting."""
        if self.validation == 0:
            return []
        return [
            self.cell(algorithm, setting, seed, self.validation)
            for algorithm in self.axes
            if len(self.settings(algorithm)) > 1
            for setting in self.settings(algorithm)
            for seed in self.search_seeds
        ]

    def final(self, chosen: Mapping[str, list[Table]] | None = None) -> list[Cell]:
        """The cells to report, trained on all rows: of every setting, or of those chosen for each algorithm."""
        chosen = {name: self.settings(name) for name in self.axes} if chosen is None else chosen
        return [
            self.cell(algorithm, setting, seed, 0.0)
            for algorithm, settings in chosen.items()
            for setting in settings
            for seed in self.final_seeds
        ]

    def cell(self, algorithm: str, setting: Table, seed: int, held_out: float) -> Cell:
        """The cell of a setting and a seed, checked as a spec of its own."""
        table = copy.deepcopy(self.table)
        given = table["algorithms"][algorithm]
        for key, value in setting.items():
            section, name = place(algorithm, key)
            (given if section == algorithm else table.setdefault(section, {}))[name] = value
        table["algorithms"] = {algorithm: given}
        table["train"] = {**table.get("train", {}), "seeds": [seed]}
        return Cell(algorithm, setting, seed, held_out, resolve(self.name, table))


def read(path: str | Path | None = None, algorithms: Sequence[str] = (), overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a file, or of the bundled one: with only these algorithms, and with `key=value` overrides."""
    name, table = read_table(path)
    try:
        return make(name, table, algorithms, overrides)
    except ConfigError as error:
        if path is None:
            raise
        raise ConfigError(f"{path}: {error}") from error


def again(table: Table) -> Sweep:
    """The sweep that `as_dict` has written down."""
    table = dict(table)
    name, chosen, only = table.pop("name"), table.pop("chosen", ()), table.pop("only", ())
    return make(name, table, chosen).narrow(only)


def make(name: str, table: Table, algorithms: Sequence[str] = (), overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a table of settings, checked key by key; every cell is then checked as a spec of its own."""
    table = copy.deepcopy(table)
    section = table.pop("sweep", None)
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"sweep is {section!r}; expected a section [sweep]: which keys to vary, over which values")
    check_sections(table)
    if section is None:
        keep_algorithms(table, algorithms)
    sweep: Table = {"validation": 0} if section is None else section
    known = table["algorithms"]
    check_algorithms(known)
    for key, value in sweep.items():
        if key not in (*OPTIONS, EVERY, PART, *known):
            raise unknown("key in [sweep]", key, (*OPTIONS, EVERY, PART, *known))
        if key not in OPTIONS and not isinstance(value, dict):
            raise ConfigError(f"sweep.{key} is {value!r}; expected a section [sweep.{key}] with lists of values")
    for algorithm in algorithms:
        if algorithm not in known:
            raise unknown("algorithm of this sweep", algorithm, known)
    grids = {name: {**sweep.get(EVERY, {}), **sweep.get(name, {})} for name in known}
    axes = {name: grids[name] for name in algorithms or known}
    for text in overrides:
        _check_not_swept(text, axes, table)
        override(table, text)
    seeds = check_seeds("train.seeds", table.get("train", {}).get("seeds", Train.seeds))
    options = {key: sweep.get(key, default) for key, default in OPTIONS.items()}
    search_seeds = options.pop("search_seeds")
    search_seeds = seeds if search_seeds is None else check_seeds("sweep.search_seeds", search_seeds)
    made = Sweep(
        name,
        table,
        axes,
        search_seeds=search_seeds,
        final_seeds=seeds,
        part=sweep.get(PART, {}),
        section=section,
        **options,
    )
    _check_options(made)
    for algorithm, of_algorithm in axes.items():
        check_axes(algorithm, of_algorithm, table)
        made.cell(algorithm, made.settings(algorithm)[0], seeds[0], 0.0)
    check_part(made.part, grids)
    return made


def _check_not_swept(text: str, axes: Mapping[str, Axes], table: Table) -> None:
    """Check that an override sets no key that is swept."""
    swept = {place(algorithm, key): key for algorithm in axes for key in axes[algorithm]}
    places, _ = parse_override(table, text)
    for key in (swept[target] for target in places if target in swept):
        raise ConfigError(f"--set {text}: {key} is swept; choose among its values with --only {key}=VALUE,VALUE")


def _check_options(sweep: Sweep) -> None:
    """Check all that [sweep] says besides its axes."""
    share = sweep.validation
    if not (is_number(share) and 0 <= share < 1):
        raise ConfigError(f"sweep.validation is {share!r}; expected a fraction of at least 0 and below 1")
    if sweep.finals not in FINALS:
        raise unknown("sweep.finals", sweep.finals, FINALS)
    if sweep.finals == "winners" and sweep.validation == 0:
        raise ConfigError('sweep.finals is "winners" and sweep.validation is 0; expected rows to choose winners by')
    if not isinstance(sweep.watch_train, bool):
        raise ConfigError(f"sweep.watch_train is {sweep.watch_train!r}; expected true or false")
    if sweep.precision not in (None, *PRECISIONS):
        raise unknown("sweep.precision", sweep.precision, PRECISIONS)
