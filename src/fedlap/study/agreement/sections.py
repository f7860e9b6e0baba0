"""The sections [study], [robust] and [network] of a study's file, key by key."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, cast

from fedlap.domains import COUNT, MOST, TRUTH, domains_of, optional, real, whole
from fedlap.errors import ConfigError, unknown
from fedlap.streams import LARGEST
from fedlap.study.table.columns import MOST_COLUMNS, check_name

MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEFAULT_ADDRESS = "127.0.0.1:9443"
LAST_PORT = 65535
BOUND = optional(real("a number from 1 to 1e+06, such as 3", lambda bound: 1 <= bound <= 1e6))
MOST_MEMBERS = 1_000
YEAR = 366 * 24 * 3600
SECONDS = real(f"a number of seconds above 0, at most {YEAR:,} (a year)", lambda seconds: 0 < seconds <= YEAR)


@dataclass(frozen=True)
class General:
    """The section [study]."""

    name: str
    members: tuple[str, ...]
    rounds: Annotated[int, COUNT] = 20
    seed: Annotated[int, whole(0, LARGEST)] = 0
    minimum_rows: Annotated[int, whole(2, MOST)] = 10  # sums over fewer training rows tell about single patients
    test_fraction: Annotated[float, real("a number from 0 to 0.5", lambda share: 0 <= share <= 0.5)] = 0.2
    share_points: Annotated[bool, TRUTH] = False
    ignored_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class RobustSection:
    """The section [robust]."""

    bound: Annotated[float | None, BOUND] = (
        None  # how often the middle member's move one member may move the model, in a round
    )


@dataclass(frozen=True)
class NetworkSection:
    """The section [network]."""

    address: str = DEFAULT_ADDRESS
    quorum: Annotated[int, whole(0, MOST_MEMBERS)] = 0  # 0 stands for all members
    deadline: Annotated[float, SECONDS] = 300.0  # for one round
    retries: Annotated[int, whole(0, MOST)] = 3


def parse_general(table: dict[str, Any]) -> General:
    """The section [study], checked."""
    general = parse_section(General, table, "study", ("name", "members"))
    check_name(general.name, "study.name")
    members = general.members
    if not isinstance(members, tuple) or len(members) < 2:
        raise ConfigError(f"study.members is {members!r}; expected a list of at least two names")
    if len(members) > MOST_MEMBERS:
        raise ConfigError(f"study.members has {len(members):,} names; expected at most {MOST_MEMBERS:,}")
    for name in members:
        if not isinstance(name, str) or not MEMBER_NAME.fullmatch(name):
            raise ConfigError(f"study.members has {name!r}; expected a name of letters, digits, - and _, at most 64")
    # Names are also names of files, and some disks do not tell capitals from small letters.
    if len({name.lower() for name in members}) < len(members):
        raise ConfigError(f"study.members is {list(members)}; expected names that differ in more than capital letters")
    if not isinstance(general.ignored_columns, tuple):
        raise ConfigError(f"study.ignored_columns is {general.ignored_columns!r}; expected a list of names")
    if len(general.ignored_columns) > MOST_COLUMNS:
        raise ConfigError(
            f"study.ignored_columns has {len(general.ignored_columns):,} names; expected at most {MOST_COLUMNS:,}"
        )
    for name in general.ignored_columns:
        check_name(name, "study.ignored_columns")
    return general


def parse_robust(table: dict[str, Any] | None) -> RobustSection:
    """The section [robust], checked; without it nobody is bounded."""
    if table is None:
        return RobustSection()
    return parse_section(RobustSection, table, "robust", ("bound",))


def check_address(name: str, address: object) -> None:
    """A host and a port; `name` is where the address stands."""
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdigit() and len(port) <= len(str(LAST_PORT))):
        raise ConfigError(f'{name} is {address!r}; expected "host:port", such as "{DEFAULT_ADDRESS}"')
    if not 0 < int(port) <= LAST_PORT:
        raise ConfigError(f"{name} is {address!r}; expected a port from 1 to {LAST_PORT}, such as {DEFAULT_ADDRESS!r}")


def parse_network(table: dict[str, Any], count: int) -> NetworkSection:
    """The section [network], checked; `count` is the number of members, which a quorum cannot exceed."""
    network = parse_section(NetworkSection, table, "network")
    check_address("network.address", network.address)
    if network.quorum > count:
        raise ConfigError(f"network.quorum is {network.quorum}; the study has {count} members")
    return network


Section = TypeVar("Section")


def parse_section(kind: type[Section], table: dict[str, Any], section: str, needed: Sequence[str] = ()) -> Section:
    """A section as the dataclass of its keys; ConfigError at one that is unknown, missing, or outside its domain."""
    known = [item.name for item in fields(cast(Any, kind))]
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    for key in needed:
        if key not in table:
            raise ConfigError(f"{section}.{key} is missing")
    made = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    for key, domain in domains_of(kind).items():
        domain.check(f"{section}.{key}", getattr(made, key))
    return made
