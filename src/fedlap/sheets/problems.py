"""What is wrong with a file, gathered, so that one look tells its owner all of it."""

from dataclasses import dataclass, field
from pathlib import Path

from fedlap.errors import DataError

SHOWN = 20
LONGEST = 40  # characters of a cell that a message repeats


@dataclass
class Problems:
    """The problems of one file: the first twenty in words, the others counted."""

    path: Path
    messages: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, message: object, row: int | None = None, column: str | None = None) -> None:
        """One more problem; a row is numbered as a spreadsheet numbers it.

        Only a message that is shown is put in words: a million cells are not each compared with all categories.
        """
        self.count += 1
        if len(self.messages) < SHOWN:
            in_row = "" if row is None else f", row {row}"
            in_column = "" if column is None else f", column {column[:LONGEST]}"
            self.messages.append(f"{self.path.name}{in_row}{in_column}: {message}")

    def stop(self) -> None:
        """Raise one error of all problems, if there are any."""
        if not self.count:
            return
        if self.count == 1:
            raise DataError(self.messages[0])
        more = [f"… and {self.count - SHOWN} more"] if self.count > SHOWN else []
        raise DataError("\n".join([f"{self.path.name}: {self.count} problems", *self.messages, *more]))


def shown(cell: object) -> str:
    """A cell as a message repeats it."""
    text = str(cell)
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "…")
