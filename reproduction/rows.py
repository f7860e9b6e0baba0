"""The rows of the paper's tables: a sweep each, its results, and the numbers the paper printed."""

import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedlap.errors import ConfigError, unknown
from fedlap.experiments import results, summary
from fedlap.experiments import sweep as cells

ALGORITHMS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "feddyn": "FedDyn",
    "fedlap": "FedLap",
    "fedlap_cov": "FedLap-Cov",
    "fedlap_func": "FedLap-Func",
}
HERE = Path(__file__).parent
PUBLISHED = "published.toml"
STANDARD = "standard-"  # the same row as a user would run it: scaled inputs, ReLU
PAPER, HONEST = summary.PAPER, summary.HONEST  # both of the paper's own grid
WIDER = "wider"  # as the paper, where a row's grid also has values of ours
WAYS = (PAPER, HONEST, WIDER)


@dataclass(frozen=True)
class Paper:
    """A folder with published.toml, specs/ and results/: this package's own, unless another is named."""

    folder: Path
    fresh: dict[str, Path] = field(default_factory=dict)  # of some rows: new results, to report in place of these
    chosen_anew: bool = False  # and their settings chosen by them too
    _rows: dict[str, "PaperRow"] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def find(cls, folder: Path | None = None) -> "Paper":
        folder = HERE if folder is None else Path(folder)
        if not (folder / PUBLISHED).exists():
            raise ConfigError(f"{folder}: no {PUBLISHED} there; expected the numbers that the paper prints")
        return cls(folder)

    @cached_property
    def published(self):
        file = self.folder / PUBLISHED
        try:
            printed = tomllib.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: not a TOML file ({error})") from error
        if "rows" not in printed:
            raise ConfigError(f"{file}: [rows] is missing; expected the rows of the paper's tables")
        return printed

    @property
    def names(self):
        """The rows that can be run."""
        return sorted(path.stem for path in self.folder.glob("specs/*.toml"))

    def row(self, name: str) -> "PaperRow":
        """A row by its name; its results are read once, however many tables ask for them."""
        if name not in self._rows:
            self._rows[name] = self._make_row(name)
        return self._rows[name]

    def _make_row(self, name: str) -> "PaperRow":
        if name not in self.names:
            raise unknown("row", name, self.names)
        known = self.published["rows"].get(name.removeprefix(STANDARD), {"title": name})
        committed = self.folder / "results" / f"{name}.jsonl"
        report_from = self.fresh.get(name, committed)
        choose_from = report_from if self.chosen_anew else committed
        spec = self.folder / "specs" / f"{name}.toml"
        return PaperRow(name, known["title"], known.get("minutes"), spec, choose_from, report_from)


@dataclass(frozen=True)
class PaperRow:
    """A data set divided in one way."""

    name: str
    title: str
    minutes: float | None  # the paper's time for one run, if it gives one
    spec: Path
    choose_from: Path  # the results that settings are chosen by
    report_from: Path  # those to report: the same, unless these settings were run anew

    @cached_property
    def sweep(self):
        return cells.read(self.spec)

    @cached_property
    def candidates(self):
        return self._of_sweep(self.choose_from)

    @cached_property
    def reported(self):
        return self.candidates if self.report_from == self.choose_from else self._of_sweep(self.report_from)

    def _of_sweep(self, file):
        """The results of this sweep as it stands now; runs it no longer has, or has changed, do not count."""
        return self.sweep.select(results.load(file))

    def chosen(self, algorithm, way):
        return self._chosen.get((algorithm, way))

    @cached_property
    def _chosen(self):
        """All ways at once: a table asks for each of them again and again."""
        finals, papers = self.sweep.finals, summary.in_part(self.candidates, self.sweep)
        found = {
            (algorithm, way): summary.choose(papers, algorithm, way, finals)
            for algorithm in self.sweep.algorithms
            for way in (PAPER, HONEST)
        }
        for algorithm in self.sweep.part:
            found[algorithm, WIDER] = summary.choose(self.candidates, algorithm, PAPER, finals)
        return found

    def settings(self, algorithm, way):
        """Those to choose from."""
        mine = self.sweep.settings(algorithm)
        return mine if way == WIDER else [each for each in mine if self.sweep.in_part(algorithm, each)]

    def runs(self, algorithm, way):
        """The runs to report, one a seed, of the setting that won in this way."""
        chosen = self.chosen(algorithm, way)
        return [] if chosen is None else summary.finals(self.reported, algorithm, chosen.setting)

    @property
    def winners(self):
        """The settings that won in some way, by algorithm."""
        return summary.winners(self.candidates, self.sweep)
