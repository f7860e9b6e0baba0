"""The paper's figures, and the learning curves of any row."""

from typing import NamedTuple

import numpy as np

from fedlap.errors import DataError
from fedlap.experiments.plots import Line, accuracy_and_nll, as_table, name_axes, pyplot, save
from fedlap.experiments.summary import finals
from reproduction.pooled import optimum
from reproduction.rows import ALGORITHMS, PAPER, WIDER
from reproduction.write import setting_text

TWO_CLIENTS = {  # and over how many rounds a median smooths: Adam on columns up to 100,000 throws some far off
    "uci-two-clients": ("a thousand steps of Adam for each local problem", 9),
    "uci-two-clients-exact": ("local problems solved exactly", 1),
}
COLOURS = {  # the same in both panels
    **{("feddyn", 10.0**-power): f"C{power - 1}" for power in range(1, 6)},
    **{("fedlap", 10.0**-power): f"C{power + 6}" for power in (-1, 0, 1)},
}
WITHIN = 0.01  # of the ideal train loss


class Drawn(NamedTuple):
    """What a picture shows, in words and as numbers."""

    title: str
    words: list[str]
    columns: list[str]
    numbers: list[list]  # a row a round of each line


def curves(row, path):
    """Accuracy and NLL of every algorithm's winner, mean and spread over seeds."""
    runs, chosen = {}, False
    for name, title in ALGORITHMS.items():
        # Of a method that ran only with values of ours, what these gave.
        way, label = (PAPER, title) if _with_results(row).runs(name, PAPER) else (WIDER, f"{title}, wider grid")
        if mine := row.runs(name, way):
            runs[label] = mine
            chosen |= row.chosen(name, way).settings > 1
    how = "settings chosen on test, as the paper seems to" if chosen else "one setting a method, nothing chosen"
    return _accuracy_and_nll(runs, f"{row.title}: {how}", path, words=[])


def _accuracy_and_nll(runs, title, path, words, styles=None, **options):
    """{label: runs} as a picture, in words and as numbers; `words` come last."""
    lines = [_line(label, mine, (styles or {}).get(label, "-")) for label, mine in runs.items()]
    accuracy_and_nll(lines, title, path, **options)
    columns = ["line", "round", "accuracy_mean", "accuracy_deviation", "nll_mean", "nll_deviation"]
    numbers = []
    for line in lines:
        tables = as_table(line.accuracy), as_table(line.nll)
        per_round = zip(*(each for table in tables for each in (table.mean(0), table.std(0))), strict=True)
        numbers += [[line.label, i, *(f"{x:.5g}" for x in values)] for i, values in enumerate(per_round, start=1)]
    return Drawn(title, [*(_turns(label, mine) for label, mine in runs.items()), *words], columns, numbers)


def weight_decay(paper, path):
    """FedDyn with and without weight decay, and FedLap, on homogeneous MNIST (the paper's appendix D.1)."""
    row, runs, styles = _with_results(paper.row("mnist-weight-decay")), {}, {}
    for name in row.sweep.algorithms:
        for setting in row.sweep.settings(name):
            mine = finals(row.reported, name, setting)
            if mine:
                label = f"{ALGORITHMS[name]}, {setting_text(setting).replace('_', ' ')}"
                runs[label], styles[label] = mine, "-" if name == "feddyn" else "--"
    rounds = paper.published["weight-decay"]["falls_apart_after"]
    words = [f"the paper: catastrophic after the first {rounds} rounds without weight decay"]
    title = "FedDyn's weight decay, homogeneous MNIST"
    return _accuracy_and_nll(runs, title, path, words, styles, accuracies=(93, 98.5))


def _turns(label, runs):
    """Where the mean over seeds is best, and where it ends."""
    nlls = [run.curves["test"].nll for run in runs]
    diverged = [nll.index(None) + 1 for nll in nlls if None in nll]
    if diverged:
        return f"{label}: {len(diverged)} of {len(runs)} seeds diverged, the first at round {min(diverged)}"
    accuracy, nll = (np.mean([getattr(run.curves["test"], name) for run in runs], 0) for name in ("accuracy", "nll"))
    return (
        f"{label}: accuracy {100 * accuracy.max():.1f} at round {accuracy.argmax() + 1}, {100 * accuracy[-1]:.1f} in "
        f"the end; NLL {nll.min():.3f} at round {nll.argmin() + 1}, {nll[-1]:.3f} in the end"
    )


def _line(label, runs, style="-"):
    tests = [run.curves["test"] for run in runs]
    return Line(label, [curve.accuracy for curve in tests], [curve.nll for curve in tests], style)


def two_clients(paper, path):
    """How near the train NLL comes to that of each method's own ideal (the paper's appendix D.2).

    Twice: with a thousand steps of Adam for each local problem, as the paper says, and with these solved exactly.
    """
    words, numbers = [], []
    figure, axes = pyplot().subplots(1, 2, figsize=(12, 4.4), sharey=True, layout="constrained")
    for axis, (name, (title, window)) in zip(axes, TWO_CLIENTS.items(), strict=True):
        if paper.fresh and name not in paper.fresh:
            title += " (results of the repository)"
        said, lines = _approach(_with_results(paper.row(name)), axis, window)
        words += [f"{title}:", *said]
        numbers += [[name, label, i, f"{gap:.5g}"] for label, line in lines.items() for i, gap in enumerate(line, 1)]
        axis.set_title(title + (f"; also over {window} rounds" if window > 1 else ""), fontsize=10)
    printed = paper.published["two-clients"]
    words.append(
        f"the paper: test NLL of the pooled optimum {printed['test_nll']['1.0']:.3f} at delta = 1, "
        f"{printed['test_nll']['0.0']:.3f} at delta = 0; within 1 % after {printed['fedlap_rounds']} rounds of "
        f"FedLap and {printed['feddyn_rounds']} of FedDyn"
    )
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    title = "UCI Credit, two clients: median over seeds"
    figure.suptitle(title)
    save(figure, path)
    return Drawn(title, words, ["row", "line", "round", "relative_gap_of_train_nll"], numbers)


# The figures with a name, and the rows they are drawn from.
FIGURES = {"weight-decay": weight_decay, "two-clients": two_clients}
ROWS = {"mnist-weight-decay": "weight-decay", **dict.fromkeys(TWO_CLIENTS, "two-clients")}


def _approach(row, axis, window):
    """Draw one panel; return the rounds until 1 %, in words, and the lines."""
    ideal, words, lines = pooled_optima(row), [], {}
    tests = ", ".join(
        "{:.3f} to {:.3f} at delta = {:g}".format(*_ends([of_seed[delta].test for of_seed in ideal.values()]), delta)
        for delta in ideal[row.sweep.final_seeds[0]]
        if delta > 0
    )
    words.append(f"test NLL of the pooled optimum: {tests}; there is none at delta = 0")
    for algorithm in row.sweep.algorithms:
        for setting in row.sweep.settings(algorithm):
            runs = finals(row.reported, algorithm, setting)
            if not runs:
                continue
            targets = [[ideal[run.seed][setting.get("delta", 0.0)].train] for run in runs]
            gaps = as_table([run.curves["train"].nll for run in runs]) / targets - 1
            reached = [_first(np.abs(gap) <= WITHIN) for gap in gaps]
            label = f"{ALGORITHMS[algorithm]}, {setting_text(setting)}"
            words.append(f"{label}: {_rounds(reached, gaps.shape[1])}")
            style = "-" if algorithm == "feddyn" else "--"
            colour = COLOURS[algorithm, setting["delta" if algorithm == "fedlap" else "alpha"]]
            line = lines[label] = running_median(np.abs(gaps), window)
            axis.plot(range(1, len(line) + 1), line, style, color=colour, linewidth=1, label=label)
    axis.axhline(WITHIN, color="grey", linewidth=0.8)
    axis.set(xscale="log", yscale="log")
    name_axes(axis, "|train NLL / that of its ideal − 1|")
    return words, lines


def pooled_optima(row):
    """{seed: {delta: train and test NLL of the minimiser of the pooled loss}}, solved to rounding.

    Seeds leave out another one of the 521 rows. Without a penalty there is no minimiser: some categories are held by
    one class only, so their weights grow for ever. The train NLL has a limit all the same, the test NLL has none; 1e-6
    is about where the paper's 0.420 is.
    """
    settings = row.sweep.settings("fedlap")
    deltas = sorted({0.0, 1e-6, *(setting["delta"] for setting in settings)})
    optima = {}
    for seed in row.sweep.final_seeds:
        federation = row.sweep.cell("fedlap", settings[0], seed, 0.0).spec.make_federation(seed)
        optima[seed] = {delta: optimum(federation, delta) for delta in deltas}
    return optima


def _ends(values):
    return min(values), max(values)


def _with_results(row):
    if not any(result.held_out == 0 for result in row.reported):
        file = row.report_from
        raise DataError(f"{file}: no results on all rows yet; python -m reproduction grid {row.name} makes them")
    return row


def _rounds(reached, rounds):
    aim = "within 1 % of its ideal train NLL"
    if all(each is None for each in reached):
        return f"not {aim} in {rounds} rounds"
    low, high = _ends([each for each in reached if each is not None])
    missing = sum(each is None for each in reached)
    return f"{aim} after {low if low == high else f'{low} to {high}'} rounds" + (
        f", {missing} of {len(reached)} seeds not in {rounds}" if missing else ""
    )


def running_median(lines, window):
    """The median over all lines and as many rounds before as after; at both ends fewer, down to the round itself."""
    count = lines.shape[1]
    halves = [min(window // 2, i, count - 1 - i) for i in range(count)]
    return [np.median(lines[:, i - half : i + half + 1]) for i, half in enumerate(halves)]


def _first(reached):
    return int(np.argmax(reached)) + 1 if reached.any() else None
