"""A sweep as data: a spec with one more section, and the cells it stands for.

[sweep]
validation = 0.2          of each client's rows, held out to choose a setting by; 0 if nothing is to be chosen
search_seeds = [62]       seeds of the search; those of [train] if not given
finals = "winners"        train on all rows "all" settings, or only the "winners" of the search
watch_train = true        record accuracy and NLL on the training rows too
precision = "float64"     of all runs; that of the process if not given

[sweep.every]             axes of all algorithms, for example epochs = [1, 5, 10]
[sweep.fedlap]            axes of one of them, for example delta = [1.0, 0.1] or "server_solver.steps" = [100, 1000]
"""

import copy
import hashlib
import itertools
import json
from dataclasses import dataclass, replace

from ..algorithms import ALGORITHMS
from ..arguments import keys
from ..errors import ConfigError, unknown
from ..solvers import SERVER_SOLVERS, SOLVERS
from ..spec import Spec, Train, check_algorithms, check_sections, override, parse_override, read_table, resolve

OPTIONS = {"validation": 0.2, "search_seeds": None, "finals": "all", "watch_train": False, "precision": None}
FINALS = ("all", "winners")
PRECISIONS = ("float32", "float64")
EVERY = "every"


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: an algorithm with one setting and one seed, on all rows or with some of them held out."""

    algorithm: str
    setting: dict  # the swept keys and their values
    seed: int
    held_out: float
    spec: Spec  # with this algorithm and this seed only

    @property
    def digest(self):
        """What makes two cells the same: all of a spec that can change a result, and not the name of a file."""
        content = {**self.spec.as_dict(), "name": None, "held_out": self.held_out}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def revision(self):
        return ALGORITHMS[self.algorithm].revision

    @property
    def rounds(self):
        return self.spec.train.rounds_of(ALGORITHMS[self.algorithm])

    @property
    def cost(self):
        """A number proportional to the steps of a run, to weigh what is left against what is done."""
        return self.rounds * self.spec.solver.get("epochs", 1) * (1 - self.held_out)


@dataclass(frozen=True)
class Sweep:
    """All settings of all algorithms."""

    name: str
    table: dict  # the spec without its [sweep]
    axes: dict[str, dict[str, list]]
    validation: float
    search_seeds: tuple[int, ...]
    final_seeds: tuple[int, ...]
    finals: str
    watch_train: bool
    precision: str | None

    @property
    def algorithms(self):
        return tuple(self.axes)

    def settings(self, algorithm):
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def narrow(self, restrictions):
        """A part of the grid: `epochs=5` or `delta=0.1,1` keeps these values of that axis, wherever it is swept."""
        axes = {name: dict(mine) for name, mine in self.axes.items()}
        for text in restrictions:
            key, _, words = text.partition("=")
            wanted = words.split(",")
            known = [value for mine in self.axes.values() for value in mine.get(key, [])]
            if not known:
                raise unknown("axis", key, dict.fromkeys(key for mine in self.axes.values() for key in mine))
            for word in wanted:
                if not any(_means(word, value) for value in known):
                    had = ", ".join(dict.fromkeys(map(str, known)))
                    raise ConfigError(f"--only {text}: {key} has no value {word!r}; it has {had}")
            for name, mine in axes.items():
                if key in mine:
                    mine[key] = [value for value in mine[key] if any(_means(word, value) for word in wanted)]
                    if not mine[key]:
                        had = ", ".join(map(str, self.axes[name][key]))
                        raise ConfigError(
                            f"--only {text}: leaves nothing of {name}'s {key}, which has {had}; several values are "
                            f"written --only {key}=VALUE,VALUE"
                        )
        return replace(self, axes=axes)

    def select(self, results):
        """The last of each of its cells, by its own names of settings: a result's may be those of an older grid.

        All seeds of a setting are of one revision, so that no mean is of two methods: of the newest that has run.
        """
        mine = {cell.digest: cell.setting for cell in (*self.search(), *self.final())} if results else {}
        found = {each.cell: each for each in results if self.precision in (None, each.precision)}
        known = [replace(each, setting=mine[digest]) for digest, each in found.items() if digest in mine]
        newest = {}
        for each in known:
            newest[each.group] = max(each.revision, newest.get(each.group, 0))
        return [each for each in known if each.revision == newest[each.group]]

    def search(self):
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

    def final(self, chosen=None):
        """The cells to report, trained on all rows: of every setting, or of those chosen for each algorithm."""
        chosen = {name: self.settings(name) for name in self.axes} if chosen is None else chosen
        return [
            self.cell(algorithm, setting, seed, 0.0)
            for algorithm, settings in chosen.items()
            for setting in settings
            for seed in self.final_seeds
        ]

    def cell(self, algorithm, setting, seed, held_out):
        table = copy.deepcopy(self.table)
        given = table["algorithms"][algorithm]
        for key, value in setting.items():
            section, name = _place(algorithm, key)
            (given if section == algorithm else table.setdefault(section, {}))[name] = value
        table["algorithms"] = {algorithm: given}
        table["train"] = {**table.get("train", {}), "seeds": [seed]}
        return Cell(algorithm, setting, seed, held_out, resolve(self.name, table))


def read(path, algorithms=(), overrides=()):
    """A sweep from a file; only these algorithms of it, and with `key=value` overrides, as in `fedlap run`."""
    name, table = read_table(path)
    try:
        return make(name, table, algorithms, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def make(name, table, algorithms=(), overrides=()):
    """Check the sweep key by key; every cell is then checked as a spec of its own."""
    table = copy.deepcopy(table)
    sweep = table.pop("sweep", None)
    if not isinstance(sweep, dict):
        raise ConfigError("[sweep] is missing: which keys to vary, and over which values")
    check_sections(table)
    known = table["algorithms"]
    check_algorithms(known)
    for key, value in sweep.items():
        if key not in (*OPTIONS, EVERY, *known):
            raise unknown("key in [sweep]", key, (*OPTIONS, EVERY, *known))
        if key not in OPTIONS and not isinstance(value, dict):
            raise ConfigError(f"sweep.{key} is {value!r}; expected a section [sweep.{key}] with lists of values")
    for algorithm in algorithms:
        if algorithm not in known:
            raise unknown("algorithm of this sweep", algorithm, known)
    axes = {each: {**sweep.get(EVERY, {}), **sweep.get(each, {})} for each in algorithms or known}
    for text in overrides:
        _check_not_swept(text, axes, table)
        override(table, text)
    seeds = _seeds("train.seeds", table.get("train", {}).get("seeds", Train.seeds))
    options = {key: sweep.get(key, default) for key, default in OPTIONS.items()}
    search_seeds = options.pop("search_seeds")
    search_seeds = seeds if search_seeds is None else _seeds("sweep.search_seeds", search_seeds)
    made = Sweep(name, table, axes, search_seeds=search_seeds, final_seeds=seeds, **options)
    _check_options(made)
    for algorithm, mine in axes.items():
        _check_axes(algorithm, mine, table)
        made.cell(algorithm, made.settings(algorithm)[0], seeds[0], 0.0)
    return made


def _check_not_swept(text, axes, table):
    swept = {_place(algorithm, key): key for algorithm, mine in axes.items() for key in mine}
    places, _ = parse_override(table, text)
    for key in (swept[place] for place in places if place in swept):
        raise ConfigError(f"--set {text}: {key} is swept; choose among its values with --only {key}=VALUE,VALUE")


def _place(algorithm, key):
    """The section and the key that an axis sets: those it names, or the algorithm's own, or else the solver's."""
    section, dot, name = key.partition(".")
    if dot:
        return section, name
    return (algorithm if key in keys(ALGORITHMS[algorithm]) else "solver"), key


def _seeds(name, seeds):
    if not isinstance(seeds, (list, tuple)) or not seeds or not all(type(seed) is int for seed in seeds):
        raise ConfigError(f"{name} is {seeds!r}; expected a list of whole numbers")
    return tuple(seeds)


def _check_options(sweep):
    share = sweep.validation
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise ConfigError(f"sweep.validation is {share!r}; expected a fraction of at least 0 and below 1")
    if sweep.finals not in FINALS:
        raise unknown("sweep.finals", sweep.finals, FINALS)
    if sweep.finals == "winners" and sweep.validation == 0:
        raise ConfigError('sweep.finals is "winners" and sweep.validation is 0; expected rows to choose winners by')
    if not isinstance(sweep.watch_train, bool):
        raise ConfigError(f"sweep.watch_train is {sweep.watch_train!r}; expected true or false")
    if sweep.precision not in (None, *PRECISIONS):
        raise unknown("sweep.precision", sweep.precision, PRECISIONS)


def _check_axes(algorithm, axes, table):
    for key, values in axes.items():
        section, name = _place(algorithm, key)
        makers = {algorithm: ALGORITHMS[algorithm], **_solvers(table)}
        if section not in makers or name not in keys(makers[section]):
            known = [*keys(ALGORITHMS[algorithm]), *keys(makers["solver"])]
            known += [f"server_solver.{each}" for each in keys(makers["server_solver"])]
            raise unknown(f"key in [sweep.{algorithm}]", key, known)
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{algorithm}.{key} is {values!r}; expected a list of values")


def _means(word, value):
    """Whether a word of the command line stands for a value of the file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return word == (str(value).lower() if isinstance(value, bool) else value)
    try:
        return float(word) == value
    except ValueError:
        return False


def _solvers(table):
    """The classes of [solver] and [server_solver]."""
    found = {}
    for section, makers, default in (("solver", SOLVERS, "adam"), ("server_solver", SERVER_SOLVERS, "descent")):
        name = table.get(section, {}).get("name", default)
        if name not in makers:
            raise unknown(f"{section}.name", name, makers)
        found[section] = makers[name]
    return found
