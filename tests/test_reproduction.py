"""The paper's tables, of results that are made up: what an entry measures, and what it is compared with."""

import csv
import io
import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedlap
from fedlap.errors import ConfigError, DataError
from fedlap.experiments.results import Curve
from papers import change_lines, make_up, paper_of_one_row, paper_without_results
from reproduction import commit, tables, write
from reproduction.commands import app
from reproduction.picture import picture
from reproduction.rows import Paper


@pytest.fixture
def made_up(tmp_path):
    return paper_of_one_row(tmp_path)


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


def test_a_number_is_shown_and_judged_with_the_digits_it_was_printed_with(tmp_path):
    """Table 5 has two digits of an NLL, of CIFAR-10 one: half of the last counts as near."""
    entries = tables.entries(paper_without_results(tmp_path), "5")
    digits = {entry.row.name: (entry.kind.digits, entry.kind.point) for entry in entries}
    assert digits.pop("cifar10") == (1, pytest.approx(0.05))
    assert set(digits.values()) == {(2, 0.005)}
    assert "| paper | 1.5(0.1) | 1.5(0.1) | 0.7(0.0) |" in write.markdown(entries, "5")


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
    spec = made_up.folder / "specs/row.toml"
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
    lost = {"diverged": True, "curves": {"test": {"accuracy": [0.5, None], "nll": [1.0, None]}}}
    diverges = lambda line: (line["held_out"], line["seed"], line["setting"]["epochs"]) == (0, 2, 5)
    change_lines(file, lambda line: line | lost if diverges(line) else line)
    entry, _ = tables.entries(made_up, "1")
    assert (entry.verdict("paper"), entry.verdict("honest"), entry.difference("honest")) == ("above", "diverged", None)
    text = write.markdown([entry], "1")
    assert "|  |  | ours, chosen on validation | 1 of 2 diverged |" in text
    spec = made_up.folder / "specs/row.toml"  # and if nothing else was run
    spec.write_text(spec.read_text().replace("[1, 5]", "[5]"))
    assert "1of2diverged" in command("table", "1", "--folder", made_up.folder, "--output", file.parent).output


def test_a_grid_that_ran_in_part_says_so(made_up):
    spec = made_up.folder / "specs/row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1, 5, 7]"))
    assert "| A row | FedAvg | test | epochs 1 | 2 of 3 | 2 |" in write.settings(tables.entries(made_up, "1"))


def first_of_csv(paper):
    reader = csv.DictReader(io.StringIO(write.as_csv(tables.entries(paper, "1"), "1")))
    assert len(reader.fieldnames) == len(set(reader.fieldnames))
    return next(reader)


def test_one_seed_has_no_deviation(made_up):
    change_lines(made_up.folder / "results/row.jsonl", lambda line: line if line["seed"] == 1 else None)
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
        row = replace(made_up).row("row")  # read anew
        return tables.nearest([tables.Entry(row, tables.KINDS["1"], "3", "fedavg", (mean, 0.1), {})])

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


def test_two_memory_points_have_the_numbers_of_three_tables(tmp_path):
    paper = paper_without_results(tmp_path)
    text = write.markdown(tables.entries(paper, "two-points"), "two-points")
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
    spec = made_up.folder / "specs/row.toml"
    spec.write_text(spec.read_text().replace("[1, 5]", "[1]") + validation)
    text = write.markdown(tables.entries(made_up, "1"), "1")
    assert "| A row | 3 | ours | 60.0(1.0) ▲ |" in text and "| ours, chosen on" not in text
    assert "| A row | FedAvg | – | epochs 1 | 1 | 2 | 2 | ≤ 7 |" in text


@pytest.mark.parametrize("change", [("epochs = [1, 5]", "epochs = [1, 7]"), ("rounds = 3", "rounds = 4")])
def test_results_of_what_the_sweep_no_longer_runs_do_not_count(made_up, change):
    """A value that left the grid takes its runs with it; another number of rounds makes all of them other runs."""
    spec, before = made_up.folder / "specs/row.toml", len(made_up.row("row").candidates)
    spec.write_text(spec.read_text().replace(*change))
    again = replace(made_up).row("row")  # rows are read once
    assert (before, len(again.candidates)) == (8, 4 if "epochs" in change[0] else 0)


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_the_commands_of_a_row(made_up, tmp_path):
    """From nothing: its runs, its table beside the printed one, and the files; then again with what won before."""
    out = tmp_path / "out"
    options = ("--folder", made_up.folder, "--output", out)
    shown = command("table", "1", *options).output
    assert "60.0(1.0)▲" in shown and "50.0(1.0)✓" in shown and "+10.0" in shown
    assert "FedAvg, on test: epochs 1; on validation: epochs 5" in shown
    assert {path.name for path in out.iterdir()} == {"table-1.md", "table-1.csv", "table-1.png"}
    shown = command("row", "row", *options).output
    assert "A row" in shown and "60.0(1.0)" not in shown  # what ran here, not what was made up
    assert len((out / "row.jsonl").read_text().splitlines()) == 16
    assert (out / "row-table-1.md").read_text().startswith("# Table 1")
    command("row", "row", "--quick", *options)
    quick = [json.loads(line) for line in (out / "row-quick.jsonl").read_text().splitlines()]
    assert {(line["algorithm"], line["setting"]["epochs"]) for line in quick} == {("fedavg", 1), ("fedavg", 5)}


def test_what_cannot_be_shown_is_refused(made_up, tmp_path):
    """In words, and before anything is written."""
    out, here = tmp_path / "out", ("--folder", made_up.folder)
    with pytest.raises(ConfigError, match=r"figure two-clients has its own rows; expected none, not 'row'"):
        command("figure", "two-clients", "row", *here, "--output", out)
    with pytest.raises(ConfigError, match=r"row.*'roww'.*did you mean 'row'"):
        command("figure", "curves", "roww", *here, "--output", out)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match=r"file: cannot be made .* expected a folder"):
        command("table", "1", *here, "--output", tmp_path / "file")
    (made_up.folder / "results/row.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"no results for table 1 yet; python -m reproduction grid ROW makes them \(rows: row\)"
    ):
        command("table", "1", *here, "--output", out)
    spec = made_up.folder / "specs/row.toml"
    spec.write_text(spec.read_text().replace("sweep.every", "sweep.evry"))
    with pytest.raises(ConfigError, match=r"row\.toml: unknown key in \[sweep\] 'evry'"):
        command("table", "1", *here, "--output", out)
    printed = made_up.folder / "published.toml"
    for text, message in (("[rows", "not a TOML file"), ("[table1]", r"\[rows\] is missing")):
        printed.write_text(text)
        with pytest.raises(ConfigError, match=rf"published\.toml: {message}"):
            command("table", "1", *here, "--output", out)
    assert not out.exists()


def test_a_folder_without_the_paper_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no published\.toml there; expected the numbers that the paper prints"):
        Paper.find(tmp_path)
    with pytest.raises(ConfigError, match=r"row.*flambi.*flamby"):
        Paper.find().row("flambi")


def test_no_number_is_cut_at_40_columns(tmp_path):
    """Of a table of six methods."""
    paper = paper_without_results(tmp_path)
    row = paper.row("fmnist-homog")
    chosen = {name: row.sweep.settings(name)[:1] for name in row.sweep.algorithms}
    curves = lambda cell: {"test": Curve([0.7 + cell.seed / 1000] * 50, [0.5 + cell.seed / 1000] * 50)}
    make_up(row, row.sweep.final(chosen), curves)

    def shown(columns):
        arguments = ["table", "1", "--folder", str(tmp_path), "--output", str(tmp_path / "out")]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)}, catch_exceptions=False)
        return result.output.split("Written")[0]

    def numbers(text):
        return {part for part in text.split() if any(map(str.isdigit, part))}

    narrow, wide = shown(40), shown(400)
    assert "76.3(.1)" in narrow and numbers(wide) <= numbers(narrow) and "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 40


def test_a_result_of_a_row_names_the_commit(made_up, tmp_path):
    """Two results of one version may be of different code."""
    command("grid", "row", "fedlap", "--only", "epochs=1", "--folder", made_up.folder)
    lines = [json.loads(line) for line in (made_up.folder / "results/row.jsonl").read_text().splitlines()]
    assert {line["fedlap"] for line in lines if line["algorithm"] == "fedavg"} == {fedlap.__version__}
    assert [line["fedlap"] for line in lines if line["algorithm"] == "fedlap"] == [commit.version()] * 2


def test_a_version_names_the_commit_of_a_clone(tmp_path):
    seen = lambda: commit.version.__wrapped__(tmp_path)
    source = tmp_path / "src/fedlap/__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        git_in_folder = ["git", "-C", tmp_path, *identity, *arguments]
        return subprocess.run(git_in_folder, capture_output=True, text=True, check=True).stdout.strip()

    assert seen() == fedlap.__version__
    git("init")
    git("add", "src")
    git("commit", "-m", "a clone")
    named = f"{fedlap.__version__}+{git('rev-parse', '--short=10', 'HEAD')}"
    assert seen() == named
    (tmp_path / "results.jsonl").write_text("results are no change of the code")
    assert seen() == named
    source.write_text("\n")
    assert seen() == f"{named}.changed"
