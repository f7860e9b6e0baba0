"""The paper's tables: what an entry measures, what it is compared with, and that the committed results give them."""

import csv
import importlib.util
import io
import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from fedlap.paper import figures, tables, write
from fedlap.paper.picture import picture
from fedlap.paper.pooled import optimum
from fedlap.paper.rows import Paper
from typer.testing import CliRunner

import fedlap
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.experiments.results import Curve, Result
from fedlap.experiments.spec_identity import of_spec

PAPER = Paper.find()


def test_each_table_measures_what_its_caption_says():
    curve = Curve([0.1, 0.5, 0.6, 0.4, 0.7], [5.0, 4.0, 3.0, 2.0, 1.0])
    measure = {number: kind.measure for number, kind in tables.KINDS.items()}
    assert measure["1"](curve, "4") == pytest.approx(50)
    assert measure["2"](curve, "4") == pytest.approx(60)
    assert measure["3"](curve, "55") == 3
    assert measure["3"](curve, "75") == np.inf
    assert measure["5"](curve, "5") == pytest.approx(2)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(80.0, "within"), (81.3, "within"), (81.5, "above"), (78.6, "below"), (None, None)]
)
def test_a_verdict_compares_with_the_printed_spread(ours, verdict):
    spread = None if ours is None else tables.Spread(ours, 0.1, 3)
    strict, lenient = (
        tables.Entry(None, tables.KINDS["1"]._replace(point=point), "10", "fedlap", (80.0, 0.65), {"paper": spread})
        for point in (0.5, 2.0)
    )
    assert strict.verdict("paper") == verdict
    assert lenient.verdict("paper") == ("near" if verdict in ("above", "below") else verdict)


def test_a_verdict_is_that_of_decimal_numbers():
    """97.3 − 97.5 is a hair more than 0.2 in binary; so is the accuracy point of 64.4 − 63.4."""
    for ours, published, verdict in ((97.3, (97.5, 0.1), "within"), (64.4, (63.4, 0.0), "near")):
        assert abs(ours - published[0]) > max(2 * published[1], 1.0 if verdict == "near" else 0.0)
        entry = tables.Entry(None, tables.KINDS["1"], "1", "fedlap", published, {"paper": tables.Spread(ours, 0.1, 3)})
        assert entry.verdict("paper") == verdict


def test_a_number_is_shown_and_judged_with_the_digits_it_was_printed_with():
    """Table 5 has two digits of an NLL, of CIFAR-10 one: half of the last counts as near."""
    digits = {entry.row.name: (entry.kind.digits, entry.kind.point) for entry in tables.entries(PAPER, "5")}
    assert digits.pop("cifar10") == (1, pytest.approx(0.05))
    assert set(digits.values()) == {(2, 0.005)}
    assert "| paper | 1.5(0.1) | 1.5(0.1) | 0.7(0.0) |" in write.markdown(tables.entries(PAPER, "5"), "5")


@pytest.fixture
def made_up(tmp_path):
    """A paper of one row, with results of two settings on two seeds."""
    (tmp_path / "results").mkdir()
    (tmp_path / "published.toml").write_text(
        '[rows]\nrow = { title = "A row", minutes = 7 }\n'
        '[table1.row]\n"3" = { fedavg = [50.0, 1.0], fedlap = [70.0, 1.0] }\n'
    )
    (tmp_path / "row.toml").write_text(
        '[federation]\ndataset = "heart"\n[model]\nname = "logistic"\n[train]\nrounds = 3\nseeds = [1, 2]\n'
        "[algorithms]\nfedavg = {}\nfedlap = {}\n[sweep.every]\nepochs = [1, 5]\n[sweep.fedlap]\ndelta = [1.0]\n"
    )
    paper = Paper.find(tmp_path)
    sweep = paper.row("row").sweep
    # By the test set one epoch is better (60 against 50 per cent), by the rows held out five are.
    level = {(1, "test"): 0.6, (5, "test"): 0.5, (1, "validation"): 0.2, (5, "validation"): 0.3}
    lines = []
    for cell in itertools.chain(sweep.search(), sweep.final()):
        if cell.algorithm == "fedavg":
            names = ("test", "validation") if cell.held_out else ("test",)
            off = 0.01 if cell.seed == 2 else -0.01
            curves = {name: Curve([level[cell.setting["epochs"], name] + off] * 3, [1.0] * 3) for name in names}
            lines.append(Result.of(cell, curves, 2.0, classes=10).line())
    (tmp_path / "results/row.jsonl").write_text("".join(lines))
    return paper


def test_a_table_shows_both_ways_beside_the_paper(made_up):
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | 3 | ours, chosen on test | 60.0(1.0) ▲ |" in text
    assert "|  |  | ours, chosen on validation | 50.0(1.0) ✓ |" in text
    assert "|  |  | paper | 50.0(1.0) | 70.0(1.0) |" in text  # and no column for what this table has not
    assert "|  |  | difference | +10.0 | – |" in text
    assert "| A row | FedAvg | test | epochs 1 | 2 | 2 | 2 | ≤ 7 |" in text
    assert "| A row | FedAvg | validation | epochs 5 | 2 | 2 | 2 | ≤ 7 |" in text
    assert "| A row | FedAvg | 50.0(1.0) | 50.0(1.0) | epochs 5 | yes |" in text
    line = first_of_csv(made_up)
    assert (line["paper_mean"], line["paper_deviation"]) == ("50.0", "1.0")
    number = lambda way: [line[f"chosen_on_{way}_{what}"] for what in ("mean", "difference", "verdict", "setting")]
    assert number("test") == ["60", "10", "above", "epochs 1"]
    assert number("validation") == ["50", "0", "within", "epochs 5"]


def test_values_that_the_paper_does_not_have_are_a_line_of_their_own(made_up):
    """One epoch is best, and ours; among the paper's there are only five."""
    spec = made_up.folder / "row.toml"
    spec.write_text(spec.read_text() + "[sweep.part.fedavg]\nepochs = [5]\n")
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | 3 | ours | 50.0(1.0) ✓ | – |" in text
    assert "|  |  | ours, wider grid | 60.0(1.0) ▲ |  |" in text and "*Wider grid*" in text
    assert "|  |  | difference | +0.0 | – |" in text
    assert "| A row | FedAvg | – | epochs 5 | 1 | 2 | 2 | ≤ 7 |" in text
    assert "| A row | FedAvg | test, wider grid | epochs 1 | 2 | 2 | 2 | ≤ 7 |" in text
    assert first_of_csv(made_up)["wider_grid_mean"] == "60"
    assert made_up.row("row").winners["fedavg"] == [{"epochs": 1}, {"epochs": 5}]


def test_a_winner_that_diverged_is_shown_and_counts_as_outside(made_up):
    """On one of two seeds; in the search, by which it won, it had not."""
    file = made_up.folder / "results/row.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if (line["held_out"], line["seed"], line["setting"]["epochs"]) == (0, 2, 5):
            line |= {"diverged": True, "curves": {"test": {"accuracy": [0.5, None], "nll": [1.0, None]}}}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry, _ = tables.entries(made_up, "1")
    assert (entry.verdict("paper"), entry.verdict("honest"), entry.difference("honest")) == ("above", "diverged", None)
    text = write.markdown([entry], "1")
    assert "|  |  | ours, chosen on validation | 1 of 2 diverged |" in text
    spec = made_up.folder / "row.toml"  # and if nothing else was run
    spec.write_text(spec.read_text().replace("[1, 5]", "[5]"))
    assert "1of2diverged" in fedlap_command("table", "1", "--paper", made_up.folder, "--output", file.parent).output


def test_a_grid_that_ran_in_part_says_so(made_up):
    spec = made_up.folder / "row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1, 5, 7]"))
    assert "| A row | FedAvg | test | epochs 1 | 2 of 3 | 2 |" in write.settings(tables.entries(made_up, "1"))


def first_of_csv(paper):
    reader = csv.DictReader(io.StringIO(write.as_csv(tables.entries(paper, "1"), "1")))
    assert len(reader.fieldnames) == len(set(reader.fieldnames))
    return next(reader)


def test_one_seed_has_no_deviation(made_up):
    file = made_up.folder / "results/row.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if json.loads(line)["seed"] == 1))
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | 3 | ours, chosen on test | 59.0 ▲ |" in text
    line = first_of_csv(made_up)
    assert [line[f"chosen_on_test_{what}"] for what in ("mean", "deviation", "seeds")] == ["59", "", "1"]
    picture(tables.entries(made_up, "1"), "1", made_up.folder / "one.png")
    assert (made_up.folder / "one.png").read_bytes().startswith(b"\x89PNG")


def test_an_accuracy_that_was_not_reached_lies_outside(made_up):
    """It ran, and it missed: not the same as a run that is missing."""
    printed = made_up.folder / "published.toml"
    printed.write_text(printed.read_text() + '[table3.row]\n"60" = { fedavg = [1, 1] }\n')
    first, second = tables.entries(Paper.find(made_up.folder), "3")
    assert first.ours["paper"] == tables.Spread(np.inf, None, 2)  # one seed has 59 per cent, the other 61
    assert (first.verdict("paper"), second.verdict("paper")) == ("above", None)
    assert "| A row | 60 | ours, chosen on test | ∞ ▲ | – |" in write.markdown([first, second], "3")
    path = picture([first, second], "3", made_up.folder / "rounds.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_nearest_line_is_of_runs_on_all_rows_where_there_are_some(made_up):
    """Those of the search are of fewer rows."""

    def at(mean):
        return tables.nearest([tables.Entry(made_up.row("row"), tables.KINDS["1"], "3", "fedavg", (mean, 0.1), {})])

    assert at(50.0).values == [tables.Spread(pytest.approx(50.0), pytest.approx(1.0), 2)]
    file = made_up.folder / "results/row.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:  # the search says 40 per cent of five epochs, and of one epoch there is the search only
        if line["held_out"]:
            line["curves"]["test"]["accuracy"] = [0.4 if line["setting"]["epochs"] == 5 else 0.3] * 3
    file.write_text("".join(json.dumps(x) + "\n" for x in lines if x["held_out"] or x["setting"]["epochs"] == 5))
    assert at(42.0).values[0].mean == pytest.approx(50.0)
    assert at(31.0).values[0].mean == pytest.approx(30.0)


def test_no_mean_is_of_two_revisions_and_an_earlier_one_is_marked(made_up, monkeypatch):
    """A method was changed, and one of two seeds has run again: that one alone counts."""
    monkeypatch.setattr(fedlap.FedAvg, "revision", 2)
    file = made_up.folder / "results/row.jsonl"
    again = [json.loads(line) for line in file.read_text().splitlines()]
    again = [x | {"revision": 2} for x in again if (x["seed"], x["setting"]["epochs"]) == (1, 1)]
    file.write_text(file.read_text() + "".join(json.dumps(line) + "\n" for line in again))
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | FedAvg | 50.0(1.0) | 50.0(1.0) | epochs 5 | yes |" not in text
    assert "| A row | FedAvg (revision 1) | 50.0(1.0) | 50.0(1.0) | epochs 5 | yes |" in text
    one_epoch = [each for each in made_up.row("row").candidates if each.setting["epochs"] == 1]
    assert {(each.revision, each.seed) for each in one_epoch} == {(2, 1)} and len(one_epoch) == 2


def test_two_memory_points_have_the_numbers_of_three_tables():
    text = write.markdown(tables.entries(PAPER, "two-points"), "two-points")
    for line in ("average at round 25 | ours", "maximum at round 50 | ours", "rounds to 78 % | ours"):
        assert f"| {line}" in text
    assert "| 37(5) |" in text and "| 78.8(0.2) |" in text  # the paper's


def test_a_share_of_a_batch_is_said_to_be_one(made_up):
    file = made_up.folder / "results/row.jsonl"
    file.write_text(file.read_text().replace('"batch":1,', '"batch":4,'))
    assert "| A row | FedAvg | test | epochs 1 | 2 | 2 | 2 (4 at once) |" in write.settings(
        tables.entries(made_up, "1")
    )


@pytest.mark.parametrize("validation", ["", "[sweep]\nvalidation = 0\n"])
def test_where_nothing_was_chosen_the_table_does_not_say_it_was(made_up, validation):
    spec = made_up.folder / "row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1]") + validation)
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | 3 | ours | 60.0(1.0) ▲ |" in text and "| ours, chosen on" not in text
    assert "| A row | FedAvg | – | epochs 1 | 1 | 2 | 2 | ≤ 7 |" in text


@pytest.mark.parametrize("change", [("epochs = [1, 5]", "epochs = [1, 7]"), ("rounds = 3", "rounds = 4")])
def test_results_of_what_the_sweep_no_longer_runs_do_not_count(made_up, change):
    """A value that left the grid takes its runs with it; another number of rounds makes all of them other runs."""
    spec, before = made_up.folder / "row.toml", len(made_up.row("row").candidates)
    spec.write_text(spec.read_text().replace(*change))
    assert (before, len(made_up.row("row").candidates)) == (8, 4 if "epochs" in change[0] else 0)


def fedlap_command(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_the_commands_of_a_row(made_up, tmp_path):
    """From nothing: its runs, its table beside the printed one, and the files; then again with what won before."""
    out = tmp_path / "out"
    options = ("--paper", made_up.folder, "--output", out)
    shown = fedlap_command("table", "1", *options).output
    assert "60.0(1.0)▲" in shown and "50.0(1.0)✓" in shown and "+10.0" in shown
    assert "FedAvg, on test: epochs 1; on validation: epochs 5" in shown
    assert {path.name for path in out.iterdir()} == {"table-1.md", "table-1.csv", "table-1.png"}
    shown = fedlap_command("reproduce", "row", *options).output
    assert "A row" in shown and "60.0(1.0)" not in shown  # what ran here, not what was made up
    assert len((out / "row.jsonl").read_text().splitlines()) == 16
    assert (out / "row-table-1.md").read_text().startswith("# Table 1")
    fedlap_command("reproduce", "row", "--quick", *options)
    quick = [json.loads(line) for line in (out / "row-quick.jsonl").read_text().splitlines()]
    assert {(line["algorithm"], line["setting"]["epochs"]) for line in quick} == {("fedavg", 1), ("fedavg", 5)}


def test_named_figures_are_drawn_from_committed_results(tmp_path):
    shown = fedlap_command("figure", "weight-decay", "--output", tmp_path).output
    assert "FedLap, delta 1: accuracy 98" in shown and "the paper: catastrophic after the first 7 rounds" in shown
    shown = fedlap_command("figure", "two-clients", "--output", tmp_path).output
    assert "0.334 to 0.336 at delta = 1" in shown and "2 rounds of FedLap and 78 of FedDyn" in shown
    assert "of the repository" not in shown
    for name in figures.FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"]({name}.png)" in (tmp_path / f"{name}.md").read_text()
    gaps = list(csv.DictReader(io.StringIO((tmp_path / "two-clients.csv").read_text())))
    assert {line["row"] for line in gaps} == set(figures.TWO_CLIENTS)
    assert max(int(line["round"]) for line in gaps) == 1000
    decays = list(csv.DictReader(io.StringIO((tmp_path / "weight-decay.csv").read_text())))
    last = next(line for line in decays if line["line"] == "FedLap, delta 1" and line["round"] == "20")
    assert 0.98 < float(last["accuracy_mean"]) < 0.982


def test_where_nothing_is_chosen_quick_runs_everything():
    """The figures compare settings, so that none of them may be left out."""
    for name in figures.ROWS:
        row = PAPER.row(name)
        assert row.winners == {algorithm: row.sweep.settings(algorithm) for algorithm in row.sweep.algorithms}
        assert sum(map(len, row.winners.values())) > 2


def test_a_figure_says_that_a_run_diverged(tmp_path):
    """As recorded by a process: the curve ends where there are no numbers any more."""
    shutil.copytree(PAPER.folder, tmp_path / "paper")
    for name in figures.ROWS:
        file = tmp_path / f"paper/results/{name}.jsonl"
        first, *rest = file.read_text().splitlines()
        line = json.loads(first) | {"diverged": True}
        for curve in line["curves"].values():
            curve |= {key: [*numbers[:4], None] for key, numbers in curve.items()}
        file.write_text("\n".join([json.dumps(line), *rest]) + "\n")
    paper = Paper.find(tmp_path / "paper")
    fresh = {"uci-two-clients": tmp_path / "paper/results/uci-two-clients.jsonl"}
    words = "\n".join(figures.weight_decay(paper, tmp_path / "weight-decay.png").words)
    assert "1 of 3 seeds diverged, the first at round 5" in words and (tmp_path / "weight-decay.png").exists()
    words = "\n".join(figures.two_clients(replace(paper, fresh=fresh), tmp_path / "two-clients.png").words)
    assert words.count("of the repository") == 1 and "exactly (results of the repository):" in words
    assert "1 of 3 seeds not in" in words and (tmp_path / "two-clients.png").exists()


def test_a_running_median_looks_as_far_ahead_as_back():
    line = np.array([[9.0, 1.0, 2.0, 3.0, 8.0]])
    assert figures._running_median(line, 3) == [9, 2, 2, 3, 8]
    assert figures._running_median(line, 5) == [9, 2, 3, 3, 8]
    assert figures._running_median(line, 1) == line[0].tolist()


def test_what_cannot_be_shown_is_refused(made_up, tmp_path):
    """In words, and before anything is written."""
    out, here = tmp_path / "out", ("--paper", made_up.folder)
    with pytest.raises(ConfigError, match=r"figure two-clients has its own rows; expected none, not 'row'"):
        fedlap_command("figure", "two-clients", "row", *here, "--output", out)
    with pytest.raises(ConfigError, match=r"row.*'roww'.*did you mean 'row'"):
        fedlap_command("figure", "curves", "roww", *here, "--output", out)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match=r"file: cannot be made .* expected a folder"):
        fedlap_command("table", "1", *here, "--output", tmp_path / "file")
    (made_up.folder / "results/row.jsonl").unlink()
    with pytest.raises(DataError, match=r"no results for table 1 yet; fedlap reproduce ROW makes them \(rows: row\)"):
        fedlap_command("table", "1", *here, "--output", out)
    spec = made_up.folder / "row.toml"
    spec.write_text(spec.read_text().replace("sweep.every", "sweep.evry"))
    with pytest.raises(ConfigError, match=r"row\.toml: unknown key in \[sweep\] 'evry'"):
        fedlap_command("table", "1", *here, "--output", out)
    printed = made_up.folder / "published.toml"
    for text, message in (("[rows", "not a TOML file"), ("[table1]", r"\[rows\] is missing")):
        printed.write_text(text)
        with pytest.raises(ConfigError, match=rf"published\.toml: {message}"):
            fedlap_command("table", "1", *here, "--output", out)
    assert not out.exists()


def test_a_folder_without_the_paper_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="run this in a clone"):
        Paper.find(tmp_path)
    with pytest.raises(ConfigError, match=r"row.*flambi.*flamby"):
        PAPER.row("flambi")


def test_committed_results_are_of_committed_sweeps():
    """Every line is a run of its sweep as it stands, so that no result can drift away from what it says it is of.

    Of a cell that has run again, with a newer revision, the last line counts.
    """
    for path in sorted((PAPER.folder / "results").glob("*.jsonl")):
        row = PAPER.row(path.stem)
        found = row.candidates
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {result.cell for result in found} == {line["cell"] for line in lines}, path
        assert len({(line["cell"], line.get("revision", 1)) for line in lines}) == len(lines), path
        for result in (*found[:1], *found[-1:]):
            cell = row.sweep.cell(result.algorithm, result.setting, result.seed, result.held_out)
            assert cell.digest == result.cell
            table = dict(result.spec)
            assert of_spec(fedlap.experiments.spec.resolve(table.pop("name"), table)) == of_spec(cell.spec)


def test_the_pages_are_those_of_the_committed_results():
    module = importlib.util.spec_from_file_location("pages", PAPER.folder / "pages.py")
    pages = importlib.util.module_from_spec(module)
    module.loader.exec_module(pages)
    for path, text in pages.pages(PAPER).items():
        assert path.read_text() == text, f"{path}: python paper/pages.py brings it up to date"


def test_fedlap_and_fedlap_cov_reproduce_the_tabular_rows():
    """The committed results: within two published deviations, or a point, in nine cells of ten."""
    verdicts = [
        entry.verdict("paper")
        for row in ("flamby", "uci-heterog")
        for entry in tables.entries(PAPER, "1", row)
        if entry.algorithm in ("fedlap", "fedlap_cov")
    ]
    assert len(verdicts) == 10
    assert sum(verdict in ("within", "near") for verdict in verdicts) >= 9


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
    with pytest.raises(DataError, match=r"row\.jsonl: no results on all rows yet; fedlap sweep"):
        figures.curves(made_up.row("row"), tmp_path / "curves.png")


def test_figures_are_drawn(made_up, tmp_path):
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert drawn.words == ["FedAvg: accuracy 60.0 at round 1, 60.0 in the end; NLL 1.000 at round 1, 1.000 in the end"]
    assert drawn.numbers[0] == ["FedAvg", 1, "0.6", "0.01", "1", "0"]
    assert drawn.title == "A row: settings chosen on test, as the paper seems to"


def test_a_figure_says_where_nothing_was_chosen_and_what_is_of_our_grid_only(made_up, tmp_path):
    """Of the paper's part of the grid, ten epochs, nothing has run."""
    spec = made_up.folder / "row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1, 10]") + "[sweep.part.fedavg]\nepochs = [10]\n")
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert drawn.title == "A row: one setting a method, nothing chosen"
    assert {line[0] for line in drawn.numbers} == {"FedAvg, wider grid"}


def test_a_run_that_diverged_on_its_training_rows_only_has_a_test_curve(made_up, tmp_path):
    file = made_up.folder / "results/row.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["curves"]["train"] = {"accuracy": [0.5, None, None], "nll": [1.0, None, None]}
        line["diverged"] = True
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = figures.curves(made_up.row("row"), tmp_path / "curves.png")
    assert drawn.words[0].startswith("FedAvg: accuracy 60.0 at round 1")
