"""A table for a terminal of 80 columns."""

import re
from itertools import groupby

from reproduction.rows import HONEST, PAPER, WIDER
from reproduction.tables import KINDS
from reproduction.write import ABOVE, DIFFERENCE, LINES, UNTUNED, has_wider, lines, titles, winning_settings

LEGEND = (
    "mean(standard deviation) over seeds; ours: setting chosen on test as the paper seems to, honest: on held-out "
    "rows{wider}; diff.: ours minus the paper's; ✓ within two published deviations, ≈ within a point (NLL: half a "
    "digit), judged before rounding; ▲ above, ▼ below ({above}); – not run or nothing chosen, ∞ not reached by every "
    "seed; in brackets the row's name for python -m reproduction row"
)
LEGEND_OF_WIDER = ", wider: on test, among more values than the paper's"
SHORT = {
    LINES[PAPER]: "ours",
    LINES[HONEST]: "honest",
    LINES[WIDER]: "wider",
    UNTUNED: "ours",
    "paper": "paper",
    DIFFERENCE: "diff.",
}


def legend(entries):
    return LEGEND.format(wider=LEGEND_OF_WIDER if has_wider(entries) else "", above=ABOVE)


def tables(entries, number):
    """A table for each data set, with no zeros before a point."""
    from rich.table import Table

    entries = list(entries)
    for row, group in groupby(lines(entries), key=lambda line: line[0][0]):
        name = f"{row.title} ({row.name})"
        table = Table(
            title=name, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0), min_width=len(name)
        )
        for head in (KINDS[number].head, "", *(title.replace("-", "\n-") for title in titles(entries))):
            table.add_column(head, no_wrap=True, justify="left" if head == "" else "right")
        previous = None
        for (_, key, what), cells in group:
            style = "dim" if what in ("paper", DIFFERENCE) else None
            cells = [re.sub(r"\b0\.", ".", cell).replace(" ", "") for cell in cells]
            table.add_row("" if key == previous else key, SHORT[what], *cells, style=style)
            previous = key
        yield table


def settings(entries):
    """Which hyper-parameters won, a line for each method."""
    for title, of_row in groupby(winning_settings(entries), key=lambda line: line[0]):
        yield f"[bold]{title}, settings[/bold]"
        for algorithm, mine in groupby(of_row, key=lambda line: line[1]):
            chosen = [f"{_chosen(on)}: {setting or 'as in its file'}" for _, _, on, setting, *_ in mine]
            yield f"  {algorithm}, {'; '.join(chosen)}"


def _chosen(on):
    return "not chosen" if on == "–" else f"on {on}"
