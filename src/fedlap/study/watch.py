"""What a person sees while a study runs: who has answered, who has not and since when, and how good the model is."""

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedlap.study.protocol.inquiry import Event

SIGNS = {
    "asked": ("waiting", "dim"),
    "answered": ("answered", "green"),
    "refused": ("left out", "red"),
}


class Watch:
    """A live table of the members on a terminal; plain lines, one an event that matters, anywhere else."""

    def __init__(self, members: Sequence[str], rounds: int | None, console: Console | None = None) -> None:
        self.members, self.rounds, self.console = members, rounds, console or Console(highlight=False)
        self.step, self.metrics, self.waiting = "connecting", "", ""
        self.status: dict[str, str] = {}  # of each member: the kind of the last event, a key of SIGNS
        self.notes: dict[str, str] = {}
        self.asked: dict[str, float] = {}  # when each member was first asked in this step
        self.live = Live(console=self.console, refresh_per_second=4, transient=True, get_renderable=self._table)

    def __enter__(self) -> "Watch":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def note(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, markup=False, soft_wrap=True)

    def tell(self, event: Event) -> None:
        """Take in an event of the coordinator."""
        if event.step != self.step and event.kind == "asked":
            for member in self._missing():
                self.note(f"{self.step}: without {member}, asked at {self._since(member)}")
            self.step, self.status, self.notes, self.waiting, self.asked = event.step, {}, {}, "", {}
        if event.kind == "asked":
            self.asked.setdefault(event.member, time.time())
        if event.kind in SIGNS:
            self.status[event.member] = event.kind
            self.notes[event.member] = event.note
        if event.kind == "waiting":
            self.waiting = event.note
        if event.kind == "round":
            self.metrics = f"{self._of(event.step)}: {event.note}"
        if event.kind in ("refused", "audit", "waiting", "resumed", "round", "noted"):
            said = event.note if event.note.startswith(event.member) else f"{event.member} {event.note}"
            self.note(self.metrics if event.kind == "round" else f"{event.step}: {said}")
        if event.kind == "waiting" and (missing := self._missing()):
            self.note("no answer from " + ", ".join(f"{member}, asked at {self._since(member)}" for member in missing))

    def _missing(self) -> list[str]:
        """Who was asked and has said nothing, in the members' order."""
        return [member for member in self.members if self.status.get(member) == "asked"]

    def _since(self, member: str) -> str:
        """When a member was asked, and how long ago that is."""
        then = self.asked[member]
        return f"{time.strftime('%H:%M:%S', time.localtime(then))}, {time.time() - then:.0f} s ago"

    def _of(self, step: str) -> str:
        """A round among all; a regression does not know how many it will need."""
        return step if self.rounds is None else f"{step} of {self.rounds}"

    def _table(self):
        table = Table(title=self._of(self.step) if self.step.startswith("round") else self.step)
        table.add_column("member")
        table.add_column("")
        for member in self.members:
            sign, style = SIGNS.get(self.status.get(member, ""), ("", ""))
            note = f"since {self._since(member)}" if self.status.get(member) == "asked" else self.notes.get(member, "")
            table.add_row(member, Text(f"{sign} {note}".strip(), style=style))
        return Group(table, Text(self.metrics), Text(self.waiting, style="yellow"))
