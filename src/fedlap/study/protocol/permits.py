"""What a site allows, and which runs of a study it begins: so many, and one more if its operator agrees.

A run that has begun has its setup on the site's disk, so that it counts whenever the site starts again. An agreement is
a number on disk: so many runs in all. To agree twice before the next run is to agree once.
"""

import datetime
import json
from pathlib import Path
from typing import NamedTuple, Protocol

from fedlap import files
from fedlap.errors import DataError
from fedlap.study.protocol.messages import typed
from fedlap.study.protocol.store import SETUP


class SiteRules(Protocol):
    """What a site allows: a `SitePolicy` has it, and nothing here needs more of one."""

    @property
    def source(self) -> str: ...
    @property
    def runs(self) -> int: ...
    @property
    def minimum_rows(self) -> int: ...
    @property
    def parameters_per_row(self) -> float: ...
    @property
    def metrics(self) -> bool: ...


class Agreed(NamedTuple):
    """To how many runs of a study in all a site's operator has agreed, and when."""

    study: str
    runs: int
    time: str


class Permits:
    """The runs of one member of one study, in the member's state folder."""

    def __init__(self, folder: str | Path, study: str, member: str) -> None:
        self.folder, self.study, self.member = Path(folder), study, member
        self.path = self.folder / f"agreed-{member}.json"

    def begun(self) -> list[str]:
        """The names of the runs that have begun here."""
        prefix = f"{self.member}-{self.study[:12]}-"
        return sorted(path.parent.name.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*/{SETUP}"))

    def agree(self) -> Agreed:
        """Agree to one run more than have begun."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        agreed = Agreed(self.study, len(self.begun()) + 1, now)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write(self.path, json.dumps(agreed._asdict()))
        return agreed

    def agreed(self) -> Agreed | None:
        """What the operator has agreed to for this study, if anything."""
        try:
            table = json.loads(self.path.read_text(encoding="utf-8"))
            agreed = Agreed(**typed(str(self.path), table, {"study": str, "runs": int, "time": str}))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DataError(f"{self.path}: not an agreement; delete it, and run `fedlap study agree` again") from error
        return agreed if agreed.study == self.study else None
