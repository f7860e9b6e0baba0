"""The committed results: the one quick test that reads them. `python -m reproduction check` looks at every line."""

import pytest

from fedlap.errors import DataError
from fedlap.experiments.results import Curve
from papers import change_lines, make_up, paper_of_one_row
from reproduction import check, pages, tables
from reproduction.experiments import more_seeds
from reproduction.rows import PAPER, Paper

COMMITTED = Paper.find()
AN_SDIST = pytest.mark.skipif(not (COMMITTED.folder / "results").exists(), reason="an sdist has no results")


@AN_SDIST
def test_the_pages_are_those_of_the_committed_results():
    """To the byte: every table, the README's extract, the page and the notes; and the first of them says so much."""
    texts = pages.pages(COMMITTED)
    assert len(texts) == len(tables.KINDS) + 6
    for path, text in texts.items():
        assert path.read_text() == text, f"{path}: python -m reproduction pages brings it up to date"
    for rows, cells, least in ((("flamby", "uci-heterog"), 10, 9), (COMMITTED.names, 40, 39)):
        entries = [entry for entry in tables.entries(COMMITTED, "1") if entry.row.name in rows]
        mine = [entry.verdict(PAPER) for entry in entries if entry.algorithm in ("fedlap", "fedlap_cov")]
        verdicts = [verdict for verdict in mine if verdict is not None]
        assert len(verdicts) == cells and sum(verdict in ("within", "near") for verdict in verdicts) == least


@pytest.fixture
def paper(tmp_path):
    return paper_of_one_row(tmp_path)


def test_results_of_their_sweeps_hold(paper):
    (line,) = check.check(paper)
    assert line.endswith("row.jsonl: 8 lines, all runs of row.toml; 0 diverged")


def foreign(line):
    return line | {"cell": "0" * 16} if line["seed"] == 2 else line


def of_another_spec(line):
    return line | {"spec": line["spec"] | {"model": {"name": "mlp"}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (foreign, r"line 2: no run of .*row\.toml as it stands"),
        (of_another_spec, r"run [0-9a-f]{16} holds a spec that is not that of its cell"),
    ],
)
def test_a_line_that_is_not_what_it_says_is_found(paper, change, message):
    change_lines(paper.folder / "results/row.jsonl", change)
    with pytest.raises(DataError, match=message):
        list(check.check(paper))


def test_a_line_that_is_there_twice_is_found(paper):
    """A cell that has run again, with a newer revision, is none."""
    file = paper.folder / "results/row.jsonl"
    first = file.read_text().splitlines()[0]
    file.write_text(f"{file.read_text()}{first}\n")
    with pytest.raises(DataError, match=r"row\.jsonl, line 9: the same run as line 1"):
        list(check.check(paper))
    lines = file.read_text().removesuffix(f"{first}\n")
    file.write_text(lines + lines.replace('"revision":1', '"revision":2'))
    assert len(list(check.check(Paper.find(paper.folder)))) == 1


def fell_apart(line):
    nll, accuracy = [0.65, 203.0, 215.0], [0.5, 0.4, 0.3]
    return line | {"curves": {name: {"accuracy": accuracy, "nll": nll} for name in line["curves"]}}


def test_only_raw_features_may_fall_apart_and_few_runs_of_them(paper):
    """By the rule that warns a user, which must leave the paper's images in peace."""
    file, spec = paper.folder / "results/row.jsonl", paper.folder / "specs/row.toml"
    change_lines(file, fell_apart)
    with pytest.raises(DataError, match=r"counts as diverged by its curve on (test|validation), and learns"):
        list(check.check(paper))
    spec.write_text(spec.read_text().replace('"heart"', '"heart"\npreset = "paper"'))
    raw = Paper.find(paper.folder)
    sweep = raw.row("row").sweep
    cells = [cell for cell in (*sweep.search(), *sweep.final()) if cell.algorithm == "fedavg"]
    make_up(raw.row("row"), cells, lambda cell: {"test": Curve([0.5, 0.4, 0.3], [0.65, 203.0, 215.0])})
    assert check.diverged(raw.row("row"), file) == [0.3] * 8
    with pytest.raises(DataError, match="8 of 8 runs diverged; expected fewer than 2%"):
        list(check.check(raw))


def test_seeds_that_chose_settings_are_not_among_the_further_ones(paper, monkeypatch):
    """All of the winners' runs are there, and nothing of an older grid."""
    row = paper.row("row")
    sweep, file = more_seeds.sweep_of(row), paper.folder / "further.jsonl"
    curves = lambda cell: {"test": Curve([0.5] * 3, [1.0] * 3)}
    make_up(row, sweep.final(row.winners), curves, file)
    assert check.further_seeds(row, file) == 20
    for change, message in (
        (lambda line: line if line["seed"] != 104 else None, "not the runs of the settings that won; expected 20"),
        (foreign_seed, "not the runs of the settings that won; expected 20"),
        (lambda line: line | {"diverged": True}, "a run diverged; expected none"),
    ):
        make_up(row, sweep.final(row.winners), curves, file)
        change_lines(file, change)
        with pytest.raises(DataError, match=message):
            check.further_seeds(row, file)
    monkeypatch.setattr(more_seeds, "SEEDS", (2, 3))
    with pytest.raises(DataError, match=r"seeds \[2\] chose settings"):
        check.further_seeds(row, file)


def foreign_seed(line):
    return line | {"cell": "0" * 16} if line["seed"] == 104 else line
