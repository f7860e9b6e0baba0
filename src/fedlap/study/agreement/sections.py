"""The sections [study], [robust] and [network] of a study's file, key by key."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from fedlap.checks import is_number, whole_number
from fedlap.errors import ConfigError, unknown
from fedlap.study.table.columns import check_name

MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEFAULT_ADDRESS = "127.0.0.1:9443"
LAST_PORT = 65535
MOST_BOUND = 1e6  # beyond it, a bound is none


@dataclass(frozen=True)
class General:
    """The section [study]."""

    name: str
    members: tuple[str, ...]
    rounds: int = 20
    seed: int = 0
    minimum_rows: int = 10  # fewer training rows, and sums over them would tell about single patients
    test_fraction: float = 0.2
    share_points: bool = False
    ignored_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class RobustSection:
    """The section [robust]."""

    bound: float | None = None  # how often the middle member's move one member may move the model, in a round


@dataclass(frozen=True)
class NetworkSection:
    """The section [network]."""

    address: str = DEFAULT_ADDRESS
    quorum: int = 0  # 0 stands for all members
    deadline: float = 300.0  # seconds for one round
    retries: int = 3


def parse_general(table: dict[str, Any]) -> General:
    """The section [study], checked."""
    general = parse_section(General, table, "study", ("name", "members"))
    check_name(general.name, "study.name")
    members = general.members
    if not isinstance(members, tuple) or len(members) < 2:
        raise ConfigError(f"study.members is {members!r}; expected a list of at least two names")
    for name in members:
        if not isinstance(name, str) or not MEMBER_NAME.fullmatch(name):
            raise ConfigError(f"study.members has {name!r}; expected a name of letters, digits, - and _, at most 64")
    # Names are also names of files, and some disks do not tell capitals from small letters.
    if len({name.lower() for name in members}) < len(members):
        raise ConfigError(f"study.members is {list(members)}; expected names that differ in more than capital letters")
    whole_number("study.rounds", general.rounds, 1)
    whole_number("study.seed", general.seed, 0)
    whole_number("study.minimum_rows", general.minimum_rows, 2)
    if not is_number(general.test_fraction) or not 0 <= general.test_fraction <= 0.5:
        raise ConfigError(f"study.test_fraction is {general.test_fraction!r}; expected a number from 0 to 0.5")
    if not isinstance(general.share_points, bool):
        raise ConfigError(f"study.share_points is {general.share_points!r}; expected true or false")
    if not isinstance(general.ignored_columns, tuple):
        raise ConfigError(f"study.ignored_columns is {general.ignored_columns!r}; expected a list of names")
    for name in general.ignored_columns:
        check_name(name, "study.ignored_columns")
    return general


def parse_robust(table: dict[str, Any] | None) -> RobustSection:
    """The section [robust], checked; without it nobody is bounded."""
    if table is None:
        return RobustSection()
    robust = parse_section(RobustSection, table, "robust", ("bound",))
    if not is_number(robust.bound) or not 1 <= cast(float, robust.bound) <= MOST_BOUND:
        raise ConfigError(f"robust.bound is {robust.bound!r}; expected a number from 1 to {MOST_BOUND:g}, such as 3")
    return RobustSection(float(cast(float, robust.bound)))


def check_address(name: str, address: object) -> None:
    """A host and a port; `name` is where the address stands."""
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdigit()):
        raise ConfigError(f'{name} is {address!r}; expected "host:port", such as "{DEFAULT_ADDRESS}"')
    if not 0 < int(port) <= LAST_PORT:
        raise ConfigError(f"{name} is {address!r}; expected a port from 1 to {LAST_PORT}, such as {DEFAULT_ADDRESS!r}")


def parse_network(table: dict[str, Any], count: int) -> NetworkSection:
    """The section [network], checked; `count` is the number of members, which a quorum cannot exceed."""
    network = parse_section(NetworkSection, table, "network")
    check_address("network.address", network.address)
    whole_number("network.quorum", network.quorum, 0)
    if network.quorum > count:
        raise ConfigError(f"network.quorum is {network.quorum}; the study has {count} members")
    if not is_number(network.deadline) or network.deadline <= 0:
        raise ConfigError(f"network.deadline is {network.deadline!r}; expected a number of seconds above 0")
    whole_number("network.retries", network.retries, 0)
    return network


Section = TypeVar("Section")


def parse_section(kind: type[Section], table: dict[str, Any], section: str, needed: Sequence[str] = ()) -> Section:
    """A section as the dataclass of its keys; ConfigError at one that is not known, or is missing."""
    known = [item.name for item in fields(cast(Any, kind))]
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    for key in needed:
        if key not in table:
            raise ConfigError(f"{section}.{key} is missing")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
