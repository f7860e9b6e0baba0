"""What the members of a study agree on: one TOML file, as a frozen dataclass; every key is checked.

[study]      name, members, rounds, seed, minimum_rows, test_fraction, share_points, ignored_columns
[columns]    one table a column: kind, unit or categories, range, and what an empty cell means
[target]     the column to predict, and its classes
[model] [solver] [server_solver] [algorithm]    name and arguments, as in an experiment's settings file
[robust]     (if wanted) bound: how often the middle member's move one member may move the model, in a round
[network]    address, quorum, deadline, retries

All but [network] is the same at every member, which the digest shows; [network] is the coordinator's and may
change while a study is under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.documents import read_toml
from fedlap.errors import ConfigError, unknown
from fedlap.settings import MethodSettings, check_packaged, defaults, fill_sections, of_method
from fedlap.sheets.problems import shown
from fedlap.study.agreement.sections import (
    General,
    NetworkSection,
    RobustSection,
    parse_general,
    parse_network,
    parse_robust,
)
from fedlap.study.table.columns import MOST_COLUMNS, Column, Target

if TYPE_CHECKING:
    from fedlap.study.agreement.policy import SitePolicy

SECTIONS = ("study", "columns", "target", "model", "solver", "server_solver", "algorithm", "robust", "network")
MOST_NUMBERS = 2**27  # of a model, in one message: half a gigabyte
TABLE_MODELS = ("logistic", "mlp")  # the models whose inputs are rows of numbers


@dataclass(frozen=True)
class Member:
    """A site: its name decides its place in every sum, and its key is its proof of being itself."""

    name: str
    public_key: Path
    private_key: Path  # at the member itself


@dataclass(frozen=True, kw_only=True)
class CommonStudy:
    """What a study of any kind has: its members, the columns of their files, and where they meet."""

    path: Path
    name: str
    columns: tuple[Column, ...]
    members: tuple[Member, ...]  # sorted by name
    seed: int
    minimum_rows: int
    ignored_columns: tuple[str, ...]
    address: str
    quorum: int
    deadline: float
    retries: int

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def host(self) -> str:
        """The server's host as certificates name it: an IPv6 address without its brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def digest(self) -> str:
        """The sha256 of all that the members must share and that somebody said."""
        raise NotImplementedError

    def member(self, name: str) -> Member:
        """The member of this name; ConfigError if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        raise unknown("member", name, [member.name for member in self.members])

    def policy(self, data: str | Path) -> "SitePolicy":
        """What the site of a data file allows in this study; ConfigError if the study is none for it."""
        from fedlap.study.agreement.policy import SitePolicy  # which reads its file as a study is read

        return SitePolicy.beside(data).for_study(self)


@dataclass(frozen=True, kw_only=True)
class Study(CommonStudy):
    """A study of a model that predicts, and can be run: every setting checked, every default written down."""

    target: Target
    rounds: int
    test_fraction: float
    share_points: bool
    bound: float | None  # on one member's part in a round's move, [robust]; None is none
    method: MethodSettings = field(repr=False)

    @classmethod
    def read(cls, path: str | Path) -> "Study":
        """The study in a file, or in the study.toml of a folder."""
        return resolve(*read_table(path))

    @property
    def digest(self) -> str:
        """The sha256 of all that the members must share and that somebody said: no default is in it."""
        content = {
            "study": identity.said(General, self._general()),
            "columns": identity.of(self.columns),
            "target": identity.of(self.target),
            **of_method(self.method),
        }
        if self.bound is not None:
            content["robust"] = identity.said(RobustSection, {"bound": self.bound})
        return identity.digest(content)

    def shared(self) -> dict[str, Any]:
        """All sections but [network], defaults too, which `resolve` reads back to the same digest."""
        method = self.method.tables()
        name = self.method.algorithm_name
        return {
            "study": {**self._general(), "ignored_columns": list(self.ignored_columns)},
            # A list of pairs: the order of the columns is the order of the model's inputs.
            "columns": [[column.name, column.as_dict()] for column in self.columns],
            "target": self.target.as_dict(),
            **{section: method[section] for section in ("model", "solver", "server_solver")},
            "algorithm": {"name": name, **method["algorithms"][name]},
            **({} if self.bound is None else {"robust": {"bound": self.bound}}),
        }

    def _general(self):
        general = {item.name: getattr(self, item.name) for item in fields(General)}
        return {**general, "members": [member.name for member in self.members]}


def read_table(path: str | Path) -> tuple[dict[str, Any], Path]:
    """The settings in a file, or in the study.toml of a folder, and the path of the file."""
    path = Path(path)
    path = path / "study.toml" if path.is_dir() else path
    return read_toml(path), path


def resolve(table: dict[str, Any], path: str | Path) -> Study:
    """Check a table of settings key by key and fill in the defaults; messages begin with the path."""
    try:
        return _resolve(table, Path(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolve(table, path):
    check_sections(table, SECTIONS, ("study", "columns", "target", "model", "algorithm"))
    general = parse_general(table["study"])
    network = parse_network(table.get("network", {}), len(general.members))
    target = Target.parse(table["target"])
    method, quorum = _method(general, table), network.quorum or len(general.members)
    if method.make_algorithm().one_shot and quorum < len(general.members):
        raise ConfigError(
            f"network.quorum is {quorum}; {method.algorithm_name} has one round, and would never hear a member "
            f"that is left out of it: expected {len(general.members)}, all members"
        )
    columns = parse_columns(table["columns"], general.ignored_columns, target)
    _check_size(method, columns, target)
    return Study(
        **common_fields(path, general, network, columns),
        target=target,
        rounds=general.rounds,
        test_fraction=float(general.test_fraction),
        share_points=general.share_points,
        bound=_bound(table.get("robust"), method),
        method=method,
    )


def check_sections(table: dict[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    """ConfigError unless a study's table has no other sections than these, and all that are needed."""
    if not isinstance(table, dict):
        raise ConfigError(f"the study is {shown(table)}; expected its sections, {', '.join(known)}")
    for section, value in table.items():
        if section not in known:
            raise unknown("section", section, known)
        if not isinstance(value, dict) and not (section == "columns" and isinstance(value, list)):
            raise ConfigError(f"{section} is {shown(value)}; expected a table, [{section}]")
    for section in needed:
        if section not in table:
            raise ConfigError(f"[{section}] is missing")


def common_fields(path: Path, general: General, network: NetworkSection, columns: tuple[Column, ...]) -> dict[str, Any]:
    """The fields of a study of any kind."""
    return {
        "path": path,
        "name": general.name,
        "columns": columns,
        "members": tuple(_member(path.parent, name) for name in sorted(general.members)),
        "seed": general.seed,
        "minimum_rows": general.minimum_rows,
        "ignored_columns": general.ignored_columns,
        "address": network.address,
        "quorum": network.quorum or len(general.members),
        "deadline": float(network.deadline),
        "retries": network.retries,
    }


def parse_columns(table: Any, ignored: Sequence[str], target: Target | None = None) -> tuple[Column, ...]:
    """The section [columns], checked."""
    pairs = list(table.items()) if isinstance(table, dict) else table
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f"columns is {shown(table)}; expected a table, [columns]")
    if not 0 < len(pairs) <= MOST_COLUMNS:
        raise ConfigError(f"[columns] has {len(pairs):,} columns; expected at least one and at most {MOST_COLUMNS:,}")
    columns = tuple(Column.parse(name, column) for name, column in pairs)
    names = {column.name for column in columns}
    if len(names) < len(columns):
        raise ConfigError("[columns] has a column twice; expected each once")
    if target is not None and target.name in names:
        raise ConfigError(f"{target.name!r} is the target and in [columns]; expected it in [target] only")
    for name in ignored:
        if name in names or (target is not None and name == target.name):
            raise ConfigError(f"{name!r} is in study.ignored_columns and also used; expected one of the two")
    return columns


def _check_size(method, columns, target):
    """Refuse a model that no member could send: its weights and their precision are as many numbers."""
    inputs = sum(1 if column.kind == "number" else len(column.categories) - 1 for column in columns)
    weights = method.count_weights(inputs, len(target.classes))
    full = getattr(method.make_algorithm(), "covariance", "diagonal") == "full"
    numbers = weights**2 if full else weights
    if numbers > MOST_NUMBERS:
        square = f', and their full covariance {numbers:,} numbers (covariance = "diagonal" has fewer)' if full else ""
        raise ConfigError(f"the model has {weights:,} weights{square}; expected at most {MOST_NUMBERS:,}")


def _member(folder, name):
    return Member(name, folder / "members" / f"{name}.pub", folder / "members" / f"{name}.key")


def _bound(table: dict[str, Any] | None, method: MethodSettings) -> float | None:
    bound = parse_robust(table).bound
    if bound is not None and not method.make_algorithm().sends_factor:
        raise ConfigError(
            f"[robust] bounds how far a factor moves in a round, and {method.algorithm_name} sends none; expected an "
            "algorithm that does, such as fedlap or fedlap_cov, or no [robust]"
        )
    return bound


def _method(general, table):
    check_packaged(table)
    arguments = defaults(ALGORITHMS, table["algorithm"], "algorithm", "name")
    method = MethodSettings(algorithms={arguments.pop("name"): arguments}, **fill_sections(table))
    method.check()
    model = table["model"]["name"]
    if model not in TABLE_MODELS:
        raise ConfigError(f"model.name is {model!r}; a study's inputs are rows of numbers: {' or '.join(TABLE_MODELS)}")
    if method.make_algorithm().memory > 0 and not general.share_points:
        raise ConfigError(
            f"algorithm.name is {method.algorithm_name!r}, which shows some patients' (standardised) inputs to all "
            "members; if they consent, write share_points = true in [study]; if not, choose another algorithm, or "
            "memory = 0"
        )
    return method
