"""What the members of a study agree on: one TOML file, as a frozen dataclass; every key is checked.

[study]      name, members, rounds, seed, minimum_rows, test_fraction, share_points, ignored_columns
[columns]    one table a column: kind, unit or categories, range, and what an empty cell means
[target]     the column to predict, and its classes
[model] [solver] [server_solver] [algorithm]    name and arguments, as in an experiment's settings file
[network]    address, quorum, deadline, retries

All but [network] is the same at every member, which the digest shows; [network] is the coordinator's and may
change while a study is under way.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.errors import ConfigError, unknown
from fedlap.settings import MethodSettings, defaults, fill_sections, of_method
from fedlap.study.agreement.sections import General, NetworkSection, parse_general, parse_network
from fedlap.study.table.columns import Column, Target

if TYPE_CHECKING:
    from fedlap.study.agreement.policy import SitePolicy

SECTIONS = ("study", "columns", "target", "model", "solver", "server_solver", "algorithm", "network")
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
        }

    def _general(self):
        general = {item.name: getattr(self, item.name) for item in fields(General)}
        return {**general, "members": [member.name for member in self.members]}


def read_table(path: str | Path) -> tuple[dict[str, Any], Path]:
    """The settings in a file, or in the study.toml of a folder, and the path of the file."""
    path = Path(path)
    path = path / "study.toml" if path.is_dir() else path
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig")), path
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from error


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
    return Study(
        **common_fields(path, general, network, parse_columns(table["columns"], general.ignored_columns, target)),
        target=target,
        rounds=general.rounds,
        test_fraction=float(general.test_fraction),
        share_points=general.share_points,
        method=method,
    )


def check_sections(table: dict[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    """ConfigError unless a study's table has no other sections than these, and all that are needed."""
    for section, value in table.items():
        if section not in known:
            raise unknown("section", section, known)
        if not isinstance(value, dict) and not (section == "columns" and isinstance(value, list)):
            raise ConfigError(f"{section} is {value!r}; expected a table, [{section}]")
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
    pairs = table.items() if isinstance(table, dict) else table
    columns = tuple(Column.parse(name, column) for name, column in pairs)
    if not columns:
        raise ConfigError("[columns] is empty; expected at least one column")
    names = [column.name for column in columns]
    if target is not None and target.name in names:
        raise ConfigError(f"{target.name!r} is the target and in [columns]; expected it in [target] only")
    for name in ignored:
        if name in names or (target is not None and name == target.name):
            raise ConfigError(f"{name!r} is in study.ignored_columns and also used; expected one of the two")
    return columns


def _member(folder, name):
    return Member(name, folder / "members" / f"{name}.pub", folder / "members" / f"{name}.key")


def _method(general, table):
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
