"""What fits a screen of any width: a table's columns if they do, else a line a value; nothing is ever cut."""

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

ENDLESS = 10_000  # columns: a screen on which everything fits
WIDE, MIDDLE = 80, 60  # columns of a screen with room for bars; with room for words


def fits(console: Console, table: Table) -> bool:
    """Whether a table's columns fit the screen, none of them cut."""
    for column in table.columns:
        if column.no_wrap:
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
            column.min_width = max(map(cell_len, lines))
    wide = console.options.update_width(ENDLESS)
    return console.measure(table, options=wide).minimum <= console.width


def show(console: Console, table: Table, names: int = 1) -> None:
    """Print a table; where it does not fit, a line for each value, below the `names` that its row begins with."""
    if fits(console, table):
        console.print(table)
        return
    for title in filter(None, (table.title, table.caption)):
        console.print(title, style="italic")
    named, heads = [""] * names, [str(column.header).replace("\n", "") for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        named = [cell or before for cell, before in zip(row, named, strict=False)]  # one left out is that above
        console.print(" ".join(filter(None, named)), style="bold", markup=False)
        values = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
        for head, cell in zip(heads[names:], row[names:], strict=True):
            if cell:
                values.add_row(f"  {head}", cell)
        console.print(values)


def bars(console: Console, width: int) -> Progress:
    """Progress bars with `description` so wide, as far as there is room, and a text `now` that wraps."""
    columns: list[ProgressColumn] = [TextColumn(f"{{task.description:<{width}}}"), MofNCompleteColumn()]
    if console.width >= WIDE:
        columns.insert(1, BarColumn(bar_width=min(30, console.width - 70)))
    columns.append(TextColumn("{task.fields[now]}", table_column=Column(overflow="fold")))
    if console.width >= MIDDLE:
        columns.append(TimeElapsedColumn())
    return Progress(*columns, console=console)
