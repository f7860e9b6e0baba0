"""The paper's figures, of results that are made up."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedlap
from fedlap.errors import DataError
from fedlap.experiments.results import Curve
from papers import change_lines, make_up, paper_of_one_row, paper_without_results
from reproduction import figures
from reproduction.commands import app
from reproduction.pooled import optimum

ROUNDS = 20


@pytest.fixture
def made_up(tmp_path):
    return paper_of_one_row(tmp_path)


@pytest.fixture
def whole(tmp_path_factory):
    """The paper with results of the rows that figures are drawn from, at one level throughout.

    With an NLL near that of the pooled optimum on two clients, where a round without numbers is never near.
    """
    paper = paper_without_results(tmp_path_factory.mktemp("whole"))
    for name in figures.ROWS:
        row = paper.row(name)
        optima = figures.pooled_optima(row) if name in figures.TWO_CLIENTS else {}

        def curves(cell, optima=optima):
            of_seed = optima.get(cell.seed)
            target = of_seed[cell.setting.get("delta", 0.0)].train if of_seed else 0.1
            nll = [1.0] * 5 + [target] * (ROUNDS - 5)
            return {name: Curve([0.981] * ROUNDS, nll) for name in ("test", "train")}

        make_up(row, row.sweep.final(), curves)
    return replace(paper)


def command(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).output


def test_named_figures_are_drawn(whole, tmp_path):
    shown = command("figure", "weight-decay", "--folder", whole.folder, "--output", tmp_path)
    assert "FedLap, delta 1: accuracy 98" in shown and "the paper: catastrophic after the first 7 rounds" in shown
    shown = command("figure", "two-clients", "--folder", whole.folder, "--output", tmp_path)
    assert "0.334 to 0.336 at delta = 1" in shown and "2 rounds of FedLap and 78 of FedDyn" in shown
    assert "of the repository" not in shown
    for name in figures.FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"]({name}.png)" in (tmp_path / f"{name}.md").read_text()
    gaps = list(csv.DictReader(io.StringIO((tmp_path / "two-clients.csv").read_text())))
    assert {line["row"] for line in gaps} == set(figures.TWO_CLIENTS)
    assert max(int(line["round"]) for line in gaps) == ROUNDS
    decays = list(csv.DictReader(io.StringIO((tmp_path / "weight-decay.csv").read_text())))
    last = next(line for line in decays if line["line"] == "FedLap, delta 1" and line["round"] == str(ROUNDS))
    assert last["accuracy_mean"] == "0.981"


def test_where_nothing_is_chosen_quick_runs_everything(whole):
    """The figures compare settings, so that none of them may be left out."""
    for name in figures.ROWS:
        row = whole.row(name)
        assert row.winners == {algorithm: row.sweep.settings(algorithm) for algorithm in row.sweep.algorithms}
        assert sum(map(len, row.winners.values())) > 2


def test_a_figure_says_that_a_run_diverged(whole, tmp_path):
    """As recorded by a process: the curve ends where there are no numbers any more."""

    def diverge(line):
        if (line["algorithm"], line["seed"]) != ("fedlap", 62) or line["setting"]["delta"] != 1:
            return line
        for curve in line["curves"].values():
            curve |= {key: [*numbers[:4], None] for key, numbers in curve.items()}
        return line | {"diverged": True}

    for name in figures.ROWS:
        change_lines(whole.row(name).report_from, diverge)
    paper = replace(whole)  # rows are read once
    words = "\n".join(figures.weight_decay(paper, tmp_path / "weight-decay.png").words)
    assert "1 of 3 seeds diverged, the first at round 5" in words and (tmp_path / "weight-decay.png").exists()
    fresh = {"uci-two-clients": whole.row("uci-two-clients").report_from}
    words = "\n".join(figures.two_clients(replace(whole, fresh=fresh), tmp_path / "two-clients.png").words)
    assert words.count("of the repository") == 1 and "exactly (results of the repository):" in words
    assert "1 of 3 seeds not in" in words and (tmp_path / "two-clients.png").exists()


def test_a_running_median_looks_as_far_ahead_as_back():
    line = np.array([[9.0, 1.0, 2.0, 3.0, 8.0]])
    assert figures.running_median(line, 3) == [9, 2, 2, 3, 8]
    assert figures.running_median(line, 5) == [9, 2, 3, 3, 8]
    assert figures.running_median(line, 1) == line[0].tolist()


def test_the_pooled_optimum_is_the_papers():
    """Test NLL 0.337 at delta = 1. Without a penalty there is no optimum: the test NLL grows as delta falls."""
    federation = fedlap.data.credit(preset="paper", split="two_clients", seed=63)
    assert optimum(federation, 1.0).test == pytest.approx(0.337, abs=1e-3)
    weaker = [optimum(federation, delta) for delta in (1e-2, 1e-4, 1e-6)]
    assert weaker[1].test - weaker[0].test > 0.02 and weaker[2].test - weaker[1].test > 0.02
    assert weaker[0].train > weaker[1].train > weaker[2].train
    # A single client's first round minimises the pooled loss: the library's Newton agrees with this one.
    standard = fedlap.data.credit(preset="standard", split="two_clients", seed=63)
    rows = np.concatenate(standard.rows)
    alone = fedlap.Federation.from_arrays(
        clients=[(standard.inputs[rows], standard.labels[rows])], test=(standard.test_inputs, standard.test_labels)
    )
    method = fedlap.FedLap(delta=1.0)
    history = fedlap.simulate(method, alone, fedlap.logistic(), solver=fedlap.newton(), rounds=1)
    assert history.nll[0] == pytest.approx(optimum(alone, 1.0).test, rel=1e-9)


def test_a_figure_without_results_is_refused(made_up, tmp_path):
    (made_up.folder / "results/row.jsonl").unlink()
    with pytest.raises(DataError, match=r"row\.jsonl: no results on all rows yet; python -m reproduction grid row"):
        figures.curves(made_up.row("row"), tmp_path / "curves.png")


def test_figures_are_drawn(made_up, tmp_path):
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert drawn.words == ["FedAvg: accuracy 60.0 at round 1, 60.0 in the end; NLL 1.000 at round 1, 1.000 in the end"]
    assert drawn.numbers[0] == ["FedAvg", 1, "0.6", "0.01", "1", "0"]
    assert drawn.title == "A row: settings chosen on test, as the paper seems to"


def test_a_figure_says_where_nothing_was_chosen_and_what_is_of_our_grid_only(made_up, tmp_path):
    """Of the paper's part of the grid, ten epochs, nothing has run."""
    spec = made_up.folder / "specs/row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1, 10]") + "[sweep.part.fedavg]\nepochs = [10]\n")
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert drawn.title == "A row: one setting a method, nothing chosen"
    assert {line[0] for line in drawn.numbers} == {"FedAvg, wider grid"}


def test_a_run_that_diverged_on_its_training_rows_only_has_a_test_curve(made_up, tmp_path):
    lost = {"train": {"accuracy": [0.5, None, None], "nll": [1.0, None, None]}}
    diverge = lambda line: line | {"diverged": True, "curves": line["curves"] | lost}
    change_lines(made_up.folder / "results/row.jsonl", diverge)
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert drawn.words[0].startswith("FedAvg: accuracy 60.0 at round 1")
