"""The coordinator's checkpoint: how far a run has come, and the arrays that its next round needs."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from fedlap import files
from fedlap.errors import DataError
from fedlap.study.protocol import store
from fedlap.study.protocol.contents import Beginning, read_beginning
from fedlap.study.protocol.messages import on_device, pack, part, typed, unpack
from fedlap.study.protocol.metrics import Score
from fedlap.study.protocol.terms import Start, Terms

LISTS = ("members", "absent", "outside")  # of a report, in JSON; tuples in Python


@dataclass(frozen=True)
class RoundReport:
    """One round as the history tells it: who took part, and how good the model was after it."""

    round: int  # the first is 1
    members: tuple[str, ...]
    absent: tuple[str, ...]
    left_out: dict[str, str]  # in a word why, of those absent who have sent something
    seconds: float
    influence: dict[str, float] = field(default_factory=dict)  # how far each has moved the model
    influence_unit: str = ""
    outside: tuple[str, ...] = ()  # who of them stands far outside
    score: Score | None = None  # known with the replies to the next request

    def as_dict(self) -> dict[str, Any]:
        """The report as a flat table, for JSON."""
        lists = {name: list(getattr(self, name)) for name in LISTS}
        table = {**asdict(self), **lists}
        del table["score"]
        return table if self.score is None else {**table, **self.score._asdict()}

    @classmethod
    def read(cls, table: dict[str, Any]) -> "RoundReport":
        """The report in such a table."""
        known = {item.name: table[item.name] for item in fields(cls) if item.name in table and item.name != "score"}
        score = (
            Score(**{name: table[name] for name in Score._fields if name in table}) if "test_rows" in table else None
        )
        return cls(**{**known, **{name: tuple(known.get(name, ())) for name in LISTS}}, score=score)


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    study: str  # the digest
    run: str
    accepted: dict[str, int]  # of each member, the last round whose answer counts
    round: int = 0  # so many are done
    finished: bool = False
    history: tuple[RoundReport, ...] = ()
    without: dict[str, int] = field(default_factory=dict)  # who was left out for good, and after how many rounds
    held_back: dict[str, int] = field(default_factory=dict)  # of each member, how many rows it reports on

    def as_dict(self) -> dict[str, Any]:
        """The progress as a table, for JSON."""
        return {**vars(self), "history": [report.as_dict() for report in self.history]}

    @classmethod
    def read(cls, table: dict[str, Any], source: str) -> "Progress":
        """The progress in such a table."""
        kinds = {"study": str, "run": str, "accepted": dict, "round": int, "finished": bool, "history": list}
        kinds |= {"without": dict, "held_back": dict}
        try:
            known = typed(source, {"without": {}, "held_back": {}, **table}, kinds)
            return cls(**{**known, "history": tuple(map(RoundReport.read, known["history"]))})
        except (KeyError, TypeError) as error:
            raise DataError(f"{source}: not the checkpoint of a run ({error})") from error


class RunState(NamedTuple):
    """The arrays of a run that has begun."""

    beginning: Beginning
    server: Any
    contributions: tuple  # the last that each member has sent, in the members' order
    used: tuple | None = None  # what a bound on members lets count of them; None without one


def write(path: Path, progress: Progress, state: RunState | None) -> None:
    """Replace the checkpoint; a run that has not begun has no arrays."""
    store.write(path, progress.as_dict(), {} if state is None else pack(state))


def previous(path: Path) -> Path:
    """Where the checkpoint before the last round is kept."""
    return path.with_name("checkpoint-previous.npz")


def keep(path: Path) -> None:
    """Keep the checkpoint as the previous one, before a round replaces it."""
    files.write(previous(path), path.read_bytes())


def read_progress(path: Path) -> Progress:
    """How far the run of a checkpoint has come, whatever its study."""
    return Progress.read(store.read(path)[0], str(path))


def read_state(path: Path, terms: Terms) -> tuple[RunState, Start] | None:
    """The arrays of a checkpoint and the start that they belong to; None before the run has begun."""
    _, arrays = store.read(path)
    if not arrays:
        return None
    beginning = read_beginning(terms, part(arrays, "beginning"), str(path))
    start = terms.server_start(beginning.sizes, beginning.memory)
    first = first_state(terms, beginning, start)
    whole = unpack(arrays, first._replace(beginning=beginning), str(path))
    return on_device(whole._replace(beginning=None))._replace(beginning=beginning), start


def first_state(terms: Terms, beginning: Beginning, start: Start) -> RunState:
    """The state before the first round, in which every member counts as one that never moves."""
    nothing = (start.first.clients.contribution,) * len(terms.members)
    return RunState(beginning, start.first.server, nothing, None if terms.bound is None else nothing)
