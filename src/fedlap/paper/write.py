"""A table as Markdown, as CSV, and on the screen."""

import csv
import io
import re
from itertools import groupby
from math import inf

from ..sweeps.choose import HONEST, PAPER
from .rows import ALGORITHMS
from .tables import KINDS, WAYS, nearest

CHOSEN_ON = {PAPER: "test", HONEST: "validation"}
LINES = {way: f"ours, chosen on {on}" for way, on in CHOSEN_ON.items()}
UNTUNED = "ours"  # every method has one setting, nothing was chosen
DIFFERENCE = "difference"  # ours, chosen on test, minus the paper's
SHORT = {LINES[PAPER]: "ours", LINES[HONEST]: "honest", UNTUNED: "ours", "paper": "paper", DIFFERENCE: "diff."}
MARKS = {"within": "✓", "near": "≈", "above": "▲", "below": "▼", None: ""}
LEGEND = (
    "Mean (standard deviation) over the seeds that ran; a mean alone is of one seed; – not run, ∞ not reached by every "
    "seed. "
)
LEGEND_OF_MARKS = (
    "✓ within two published standard deviations, ≈ within one accuracy point (of an NLL: half a printed digit), "
    "▲ above, ▼ below: above is better for an accuracy, and worse for rounds and for an NLL. *Difference*: ours, "
    "chosen on test, minus the paper's. "
)
LEGEND_OF_CHOICE = (
    "*Chosen on test*: the setting with the best test accuracy of the grid at the last round, as the paper seems to; "
    "*chosen on validation*: by rows held out of each client's training data, the test set looked at once. Where a "
    "method ran with one setting (*of* 1 below), nothing was chosen."
)

SCREEN_LEGEND = (
    "mean(standard deviation) over seeds; ours: setting chosen on test as the paper seems to, honest: on held-out "
    "rows; diff.: ours minus the paper's; ✓ within two published deviations, ≈ within a point (NLL: half a digit), "
    "▲ above, ▼ below, – not run, ∞ not reached by every seed"
)
NEAREST = (
    "The paper does not print which settings won. This is the setting of the grid that comes nearest to its line over "
    "all rounds; *inside* if each number is within two published standard deviations or one accuracy point (of an NLL: "
    "half a printed digit). A line without deviations is one of the search, where only winners were trained on all "
    "rows: one seed, a tenth of the rows held out."
)

SECONDS = (
    "Seconds are wall time, the mean over seeds. Where many runs were one compiled program (*at once*), they are a "
    "run's share of it, compilation included, and say more of their number than of the method. A method with an "
    "earlier *revision* ran before it was changed, and has not run again."
)


def title(number):
    return f"Table {number}: {KINDS[number].title}" if number.isdigit() else KINDS[number].title


def titles(entries):
    """Of the columns: the algorithms of this table, in the paper's order."""
    return [ALGORITHMS[name] for name in dict.fromkeys(entry.algorithm for entry in entries)]


def lines(entries):
    """(head, cells) of every line: for each row and round ours in both ways, the paper's, and the difference."""
    for (row, key), group in groupby(entries, key=lambda entry: (entry.row, entry.key)):
        group = list(group)
        for way, what in _ways(row).items():
            yield (row.title, key, what), [_ours(entry, way) for entry in group]
        if any(entry.published for entry in group):
            yield (row.title, key, "paper"), [number_text(entry.published, entry.kind.digits) for entry in group]
        if any(entry.difference(PAPER) is not None for entry in group):
            yield (row.title, key, DIFFERENCE), [_difference(entry) for entry in group]


def _ways(row):
    """The ways of choosing in which a row is shown, and what their lines are called."""
    chosen = [row.chosen(algorithm, PAPER) for algorithm in row.sweep.algorithms]
    searched = row.sweep.validation and any(each and each.settings > 1 for each in chosen)
    return LINES if searched else {PAPER: UNTUNED}


def markdown(entries, number):
    """The table, then which settings won and how long a run took."""
    entries, kind = list(entries), KINDS[number]
    head = ["data set", kind.head, "", *titles(entries)]
    body = [[*_once(name, previous), *cells] for name, cells, previous in _with_previous(lines(entries))]
    printed = any(entry.published for entry in entries)
    parts = [
        f"# {title(number)}\n\n{LEGEND}{LEGEND_OF_MARKS if printed else ''}{LEGEND_OF_CHOICE}\n\n",
        _grid(head, body),
        f"\n## Settings\n\n{SECONDS}\n\n",
        settings(entries),
    ]
    if kind.point and printed:
        parts += [f"\n## Does the printed line lie in the grid?\n\n{NEAREST}\n\n", in_the_grid(entries)]
    return "".join(parts)


def in_the_grid(entries):
    """The nearest setting to every printed line of accuracies or NLLs."""
    body = []
    for (row, algorithm), group in groupby(
        sorted(entries, key=lambda e: (_place(entries, e.row), list(ALGORITHMS).index(e.algorithm))),
        key=lambda entry: (entry.row, entry.algorithm),
    ):
        printed = [entry for entry in group if entry.published is not None and entry.kind.point]
        found = nearest(printed) if printed and algorithm in row.sweep.algorithms else None
        if found is not None:
            theirs = " / ".join(number_text(entry.published, entry.kind.digits) for entry in printed)
            values = zip(found.values, printed, strict=True)
            ours = " / ".join(number_text(value, entry.kind.digits) for value, entry in values)
            name, inside = _name(algorithm, found.runs), "yes" if found.inside else "no"
            body.append([row.title, name, theirs, ours, setting_text(found.setting), inside])
    return _grid(["data set", "algorithm", "paper", "nearest of ours", "setting", "inside"], body)


def _name(algorithm, runs):
    """What a method is called, with its revision if it has another one since these runs."""
    title, revisions = ALGORITHMS[algorithm], {run.revision for run in runs if not run.current}
    return f"{title} (revision {max(revisions)})" if revisions else title


def _place(entries, row):
    return next(i for i, entry in enumerate(entries) if entry.row == row)


def settings(entries):
    """Which hyper-parameters won, out of how many, on how many seeds, and the wall time beside the paper's."""
    head = ["data set", "algorithm", "chosen on", "setting", "of", "seeds", "seconds a run", "paper's minutes"]
    body = []
    for row in dict.fromkeys(entry.row for entry in entries):
        printed = any(entry.published for entry in entries if entry.row == row)
        minutes = "" if row.minutes is None or not printed else f"≤ {row.minutes}"
        for algorithm in ALGORITHMS:
            ways = {}  # by the setting they chose, mostly the same
            for way in _ways(row):
                chosen, runs = row.chosen(algorithm, way), row.runs(algorithm, way)
                if runs:
                    ways.setdefault(setting_text(chosen.setting), []).append((CHOSEN_ON[way], chosen.settings, runs))
            for setting, found in ways.items():
                _, of, runs = found[0]
                on = ", ".join(on for on, _, _ in found) if of > 1 else "–"
                seconds = sum(run.seconds for run in runs) / len(runs)
                shown = f"{seconds:.0f}" if seconds > 10 else f"{seconds:.2g}"
                shown += f" ({runs[0].batch} at once)" if runs[0].batch > 1 else ""
                body.append([row.title, _name(algorithm, runs), on, setting, of, len(runs), shown, minutes])
    return _grid(head, body)


def setting_text(setting):
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in setting.items()
    )


def as_csv(entries, number):
    """One line an entry, everything in its own column."""
    kind, text = KINDS[number], io.StringIO()
    head = ["row", kind.head, "algorithm", "paper_mean", "paper_deviation"]
    for way in WAYS:
        ours = ("mean", "deviation", "seeds", "difference", "verdict", "setting")
        head += [f"chosen_on_{CHOSEN_ON[way]}_{column}" for column in ours]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for entry in entries:
        line = [entry.row.name, entry.key, entry.algorithm, *(entry.published or (None, None))]
        for way in WAYS:
            ours, difference, chosen = entry.ours[way], entry.difference(way), entry.row.chosen(entry.algorithm, way)
            mean, deviation, seeds = ours or (None, None, None)
            line += [_significant(mean, 5), _significant(deviation, 3), seeds]
            line += [_significant(difference, 3), entry.verdict(way)]
            line += [setting_text(chosen.setting) if chosen else None]
        writer.writerow(line)
    return text.getvalue()


def _significant(value, digits):
    return None if value is None else f"{value:.{digits}g}"


def screen(entries, number):
    """For a terminal of 80 columns: a table for each data set, and no zeros before a point."""
    from rich.table import Table

    entries = list(entries)
    for name, group in groupby(lines(entries), key=lambda line: line[0][0]):
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


def _ours(entry, way):
    text = number_text(entry.ours[way], entry.kind.digits)
    mark = MARKS[entry.verdict(way)]
    return f"{text} {mark}".rstrip()


def _difference(entry):
    difference = entry.difference(PAPER)
    if difference is None or difference == inf:
        return "–" if difference is None else "∞"
    rounded = round(difference, entry.kind.digits) + 0.0  # and no minus before a zero
    return f"{rounded:+.{entry.kind.digits}f}".replace("-", "−")


def number_text(spread, digits):
    if spread is None:
        return "–"
    mean, deviation = spread[:2]
    if mean == inf:
        return "∞"
    return f"{mean:.{digits}f}" + ("" if deviation is None else f"({deviation:.{digits}f})")


def _with_previous(items):
    previous = None
    for name, cells in items:
        yield name, cells, previous
        previous = name


def _once(name, previous):
    """The line's head, with what the line above says already left out."""
    title, key, what = name
    if previous is None or previous[0] != title:
        return [title, key, what]
    return ["", "" if previous[1] == key else key, what]


def _grid(head, body):
    rows = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)
