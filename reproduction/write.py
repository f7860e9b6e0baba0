"""A table as Markdown and as CSV."""

import csv
import io
import textwrap
from itertools import groupby
from math import inf

from fedlap.experiments.winners import setting_text
from reproduction.rows import ALGORITHMS, HONEST, PAPER, WAYS, WIDER
from reproduction.tables import KINDS, nearest

CHOSEN_ON = {PAPER: "test", HONEST: "validation", WIDER: "test, wider grid"}
LINES = {PAPER: "ours, chosen on test", HONEST: "ours, chosen on validation", WIDER: "ours, wider grid"}
COLUMNS = {PAPER: "chosen_on_test", HONEST: "chosen_on_validation", WIDER: "wider_grid"}
UNTUNED = "ours"  # every method has one setting, nothing was chosen
WIDTH = 119  # of a line of prose in Markdown
DIFFERENCE = "difference"  # ours, chosen on test, minus the paper's
MARKS = {"within": "✓", "near": "≈", "above": "▲", "below": "▼", "diverged": "", None: ""}
LEGEND = (
    "Mean (population standard deviation) over the seeds that ran; a mean alone is of one seed; – not run, or nothing "
    "chosen; "
    "∞ not reached by every seed in the rounds of its row. "
)
ABOVE = "above is better for an accuracy, and worse for rounds and for an NLL"
LEGEND_OF_MARKS = (
    "✓ within two published standard deviations, ≈ within one accuracy point (of an NLL: half a printed digit), "
    f"▲ above, ▼ below: {ABOVE}. Judged before rounding. *Difference*: ours, chosen on test, minus the paper's. "
)
LEGEND_OF_CHOICE = (
    "*Chosen on test*: the setting with the best test accuracy of the paper's grid at the last round, as it seems to "
    "have chosen; *chosen on validation*: by rows held out of each client's training data, the test set looked at "
    "once. Where a method ran with one setting, nothing was chosen. "
)
LEGEND_OF_WIDER = "*Wider grid*: chosen on test, too, where the row's file has values that the paper's grid has not. "

NEAREST = (
    "The paper does not print which settings won. This is the one of its grid that comes nearest to its line over "
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
    """(head, cells) of every line: for each row and round ours in each way, the paper's, and the difference."""
    for (row, key), group in groupby(entries, key=lambda entry: (entry.row, entry.key)):
        group = list(group)
        for way, what in _ways(row).items():
            yield (row, key, what), [_ours(entry, way) for entry in group]
        if any(entry.published for entry in group):
            yield (row, key, "paper"), [number_text(entry.published, entry.kind.digits) for entry in group]
        if any(entry.difference(PAPER) is not None for entry in group):
            yield (row, key, DIFFERENCE), [_difference(entry) for entry in group]


def _ways(row):
    """The ways of choosing in which a row is shown, and what their lines are called."""
    chosen = [row.chosen(algorithm, PAPER) for algorithm in row.sweep.algorithms]
    searched = row.sweep.validation and any(each and each.settings > 1 for each in chosen)
    both = {PAPER: LINES[PAPER], HONEST: LINES[HONEST]} if searched else {PAPER: UNTUNED}
    return both | ({WIDER: LINES[WIDER]} if row.sweep.part else {})


def markdown(entries, number):
    """The table, then which settings won and how long a run took."""
    entries, kind = list(entries), KINDS[number]
    head = ["data set", kind.head, "", *titles(entries)]
    body = [[*_once(name, previous), *cells] for name, cells, previous in _with_previous(lines(entries))]
    printed = any(entry.published for entry in entries)
    parts = [
        f"# {title(number)}\n\n{_paragraph(_legend(entries))}\n\n",
        _grid(head, body),
        f"\n## Settings\n\n{_paragraph(SECONDS)}\n\n",
        settings(entries),
    ]
    if kind.point and printed:
        parts += [f"\n## Does the printed line lie in the grid?\n\n{_paragraph(NEAREST)}\n\n", in_the_grid(entries)]
    return "".join(parts)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _legend(entries):
    marks = LEGEND_OF_MARKS if any(entry.published for entry in entries) else ""
    return f"{LEGEND}{marks}{LEGEND_OF_CHOICE}{LEGEND_OF_WIDER if has_wider(entries) else ''}".rstrip()


def has_wider(entries):
    return any(entry.row.sweep.part for entry in entries)


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
    return _grid(head, winning_settings(entries))


def winning_settings(entries):
    body = []
    for row in dict.fromkeys(entry.row for entry in entries):
        printed = any(entry.published for entry in entries if entry.row == row)
        minutes = "" if row.minutes is None or not printed else f"≤ {row.minutes}"
        for algorithm in ALGORITHMS:
            ways = {}  # by the setting they chose, mostly the same
            for way in _ways(row):
                chosen, runs = row.chosen(algorithm, way), row.runs(algorithm, way)
                if runs:
                    grid = len(row.settings(algorithm, way))
                    of = f"{chosen.settings}" if chosen.settings == grid else f"{chosen.settings} of {grid}"
                    on = CHOSEN_ON[way] if chosen.settings > 1 else "–"
                    ways.setdefault(setting_text(chosen.setting), []).append((on, of, runs))
            for setting, found in ways.items():
                _, of, runs = found[0]
                on = ", ".join(dict.fromkeys(on for on, _, _ in found))
                seconds = sum(run.seconds for run in runs) / len(runs)
                shown = f"{seconds:.0f}" if seconds > 10 else f"{seconds:.2g}"
                shown += f" ({runs[0].batch} at once)" if runs[0].batch > 1 else ""
                body.append([row.title, _name(algorithm, runs), on, setting, of, len(runs), shown, minutes])
    return body


def as_csv(entries, number):
    """One line an entry, everything in its own column."""
    kind, body = KINDS[number], []
    head = ["row", kind.head, "algorithm", "paper_mean", "paper_deviation"]
    for way in WAYS:
        ours = ("mean", "deviation", "seeds", "difference", "verdict", "setting")
        head += [f"{COLUMNS[way]}_{column}" for column in ours]
    for entry in entries:
        line = [entry.row.name, entry.key, entry.algorithm, *(entry.published or (None, None))]
        for way in WAYS:
            ours, difference, chosen = entry.ours[way], entry.difference(way), entry.row.chosen(entry.algorithm, way)
            mean, deviation, seeds, _ = ours or (None,) * 4
            line += [_significant(mean, 5), _significant(deviation, 3), seeds]
            line += [_significant(difference, 3), entry.verdict(way)]
            line += [setting_text(chosen.setting) if chosen else None]
        body.append(line)
    return csv_text(head, body)


def csv_text(head, body):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *body])
    return text.getvalue()


def _significant(value, digits):
    return None if value is None else f"{value:.{digits}g}"


def _ours(entry, way):
    if way == WIDER and entry.algorithm not in entry.row.sweep.part:
        return ""
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
    if getattr(spread, "diverged", 0):
        return f"{spread.diverged} of {spread.seeds} diverged"
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
    row, key, what = name
    if previous is None or previous[0] != row:
        return [row.title, key, what]
    return ["", "" if previous[1] == key else key, what]


def _grid(head, body):
    rows = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)
