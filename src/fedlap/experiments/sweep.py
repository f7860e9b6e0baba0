"""A sweep as data: a spec with one more section, and the cells it stands for.

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
import itertools
from dataclasses import dataclass, replace

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.checks import is_number
from fedlap.errors import ConfigError, unknown
from fedlap.experiments.axes import check_axes, check_part, domain, means, place, words
from fedlap.experiments.spec import (
    Spec,
    Train,
    check_algorithms,
    check_sections,
    override,
    parse_override,
    read_table,
    resolve,
)
from fedlap.experiments.spec_identity import of_spec
from fedlap.streams import check_seeds

OPTIONS = {"validation": 0.2, "search_seeds": None, "finals": "all", "watch_train": False, "precision": None}
FINALS = ("all", "winners")
PRECISIONS = ("float32", "float64")
EVERY, PART = "every", "part"


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
        """What makes two cells the same: all that was said in a spec and can change a result.

        That is not the name of a file, nor an accuracy to look out for. [server_solver] counts for every method, even
        for those whose server minimises nothing.
        """
        spec = replace(self.spec, train=replace(self.spec.train, target_accuracy=None))
        return identity.digest({**of_spec(spec), "held_out": identity.of(self.held_out)})[:16]

    @property
    def revision(self):
        return ALGORITHMS[self.algorithm].revision

    @property
    def rounds(self):
        return self.spec.train.rounds_of(ALGORITHMS[self.algorithm])

    @property
    def epochs(self):
        return self.spec.solver.get("epochs", 1)

    @property
    def cost(self):
        """A number proportional to the steps of a run, to weigh what is left against what is done."""
        return self.rounds * self.epochs * (1 - self.held_out)


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
    part: dict[str, dict[str, list]]  # of some algorithms: fewer values of some axes

    @property
    def algorithms(self):
        return tuple(self.axes)

    def settings(self, algorithm):
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def in_part(self, algorithm, setting):
        """Whether a setting lies in the part of the grid that has winners of its own; all do if none is named."""
        return all(setting[key] in values for key, values in self.part.get(algorithm, {}).items())

    def narrow(self, restrictions):
        """A part of the grid: `epochs=5` or `delta=0.1,1` keeps these values of that axis, wherever it is swept."""
        axes = {name: dict(mine) for name, mine in self.axes.items()}
        for text in restrictions:
            key, _, values = text.partition("=")
            wanted = words(values)
            of_axis = {name: domain(name, key, self.table) for name, mine in self.axes.items() if key in mine}
            if not of_axis:
                raise unknown("axis", key, dict.fromkeys(key for mine in self.axes.values() for key in mine))
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
        return replace(self, axes=axes)

    def select(self, results):
        """The last of each of its cells, by its own names of settings: a result's may be those of an older grid.

        All seeds of a setting are of one revision and one precision, so that no mean is of two methods: of the newest
        that has run, in the precision in which most seeds did.
        """
        mine = {cell.digest: cell.setting for cell in (*self.search(), *self.final())} if results else {}
        found = {(each.cell, each.precision): each for each in results if self.precision in (None, each.precision)}
        known = [replace(each, setting=mine[digest]) for (digest, _), each in found.items() if digest in mine]
        alike = {}
        for each in known:
            alike.setdefault(each.group, {}).setdefault((each.revision, each.precision), []).append(each)
        best = (max(runs.items(), key=lambda item: (item[0][0], len(item[1]))) for runs in alike.values())
        return [each for _, runs in best for each in runs]

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
            section, name = place(algorithm, key)
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
        if key not in (*OPTIONS, EVERY, PART, *known):
            raise unknown("key in [sweep]", key, (*OPTIONS, EVERY, PART, *known))
        if key not in OPTIONS and not isinstance(value, dict):
            raise ConfigError(f"sweep.{key} is {value!r}; expected a section [sweep.{key}] with lists of values")
    for algorithm in algorithms:
        if algorithm not in known:
            raise unknown("algorithm of this sweep", algorithm, known)
    grids = {each: {**sweep.get(EVERY, {}), **sweep.get(each, {})} for each in known}
    axes = {each: grids[each] for each in algorithms or known}
    for text in overrides:
        _check_not_swept(text, axes, table)
        override(table, text)
    seeds = check_seeds("train.seeds", table.get("train", {}).get("seeds", Train.seeds))
    options = {key: sweep.get(key, default) for key, default in OPTIONS.items()}
    search_seeds = options.pop("search_seeds")
    search_seeds = seeds if search_seeds is None else check_seeds("sweep.search_seeds", search_seeds)
    made = Sweep(name, table, axes, search_seeds=search_seeds, final_seeds=seeds, part=sweep.get(PART, {}), **options)
    _check_options(made)
    for algorithm, mine in axes.items():
        check_axes(algorithm, mine, table)
        made.cell(algorithm, made.settings(algorithm)[0], seeds[0], 0.0)
    check_part(made.part, grids)
    return made


def _check_not_swept(text, axes, table):
    swept = {place(algorithm, key): key for algorithm, mine in axes.items() for key in mine}
    places, _ = parse_override(table, text)
    for key in (swept[each] for each in places if each in swept):
        raise ConfigError(f"--set {text}: {key} is swept; choose among its values with --only {key}=VALUE,VALUE")


def _check_options(sweep):
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
