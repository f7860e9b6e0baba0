"""`fedlap fit` as people use it: a process, their files, and what it leaves in the folder."""

import csv
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from lifelines.datasets import load_rossi

import fedlap
from cohorts import drawn_hospitals
from commands import command
from fedlap.cli.predictor import InProcess
from fedlap.study.agreement.example import example_files
from fedlap.study.agreement.reading import read_study
from fedlap.study.protocol.regression.coordinator import RegressionCoordinator
from fedlap.study.protocol.regression.site import RegressionSite

FAMILIES = {
    "gaussian": ("pressure", {}),
    "binomial": ("ill", {}),
    "poisson": ("visits", {"exposure": "years"}),
    "negative_binomial": ("claims", {}),
    "gamma": ("cost", {"weights": "copies"}),
    "multinomial": ("ward", {}),
}


def fit(*arguments, cwd):
    """In a process of its own, as people use it."""
    words = [sys.executable, "-m", "fedlap", "fit", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300)


def fit_here(*arguments, cwd):
    """The same in this process, in less time."""
    return command("fit", *arguments, cwd=cwd)


def coefficients(folder):
    with open(folder / "coefficients.csv", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three hospitals' files, with a column that nobody needs."""
    folder = tmp_path_factory.mktemp("files")
    frames = drawn_hospitals(np.random.default_rng(1), [150, 60, 40])
    paths = {}
    for name, frame in frames.items():
        frame.insert(0, "patient", [f"{name}-{k}" for k in range(len(frame))])
        frame.loc[3, "age"] = np.nan
        paths[name] = folder / f"{name}.csv"
        frame.to_csv(paths[name], index=False)
    return frames, paths


@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_of_sites_give_what_python_gives(family, files, tmp_path):
    frames, paths = files
    outcome, options = FAMILIES[family]
    formula = f"{outcome} ~ age + sex + smoker"
    flags = [part for name, column in options.items() for part in (f"--{name}", column)]
    run = fit if family == "multinomial" else fit_here  # the longest of them
    done = run(*paths.values(), "--formula", formula, "--family", family, *flags, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = fedlap.glm(formula, frames, family=family, **options)
    read = coefficients(tmp_path / "out")
    names = [": ".join(map(str, name)) if isinstance(name, tuple) else name for name in ours.params.index]
    np.testing.assert_allclose([float(read[name]["coefficient"]) for name in names], ours.params, rtol=1e-9)
    np.testing.assert_allclose([float(read[name]["standard_error"]) for name in names], ours.bse, rtol=1e-9)
    assert {each.name for each in (tmp_path / "out").iterdir()} >= {"report.html", "model", "study.toml", "summary.txt"}
    assert str(ours.rounds) in done.stdout and "fedlap study new FOLDER --from out/study.toml" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.startswith("<!doctype html>") and len(page) < 3_000_000


def test_one_file_with_a_column_of_sites_and_a_cox_regression(tmp_path):
    rows = load_rossi()
    rows["race"] = rows["race"].map({0: "north", 1: "south"})
    rows.to_csv(tmp_path / "patients.csv", index=False)
    done = fit(
        "patients.csv",
        "--site",
        "race",
        "--formula",
        "arrest ~ fin + age + prio",
        "--family",
        "cox",
        "--duration",
        "week",
        "--output",
        "out",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    ours = fedlap.cox("fin + age + prio", rows, site="race", duration="week", event="arrest")
    read = coefficients(tmp_path / "out")
    np.testing.assert_allclose([float(read[name]["coefficient"]) for name in ours.params.index], ours.params, rtol=1e-9)
    np.testing.assert_allclose([float(read[name]["standard_error"]) for name in ours.bse.index], ours.bse, rtol=1e-9)
    assert "concordance" in done.stdout and "hazard ratio" in (tmp_path / "out" / "report.html").read_text()


def test_without_a_file_it_fits_the_four_bundled_hospitals(tmp_path):
    done = fit("--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    frames = {name: pd.read_csv(path) for name, path in example_files(tmp_path / "again").items()}
    from fedlap.cli.fit import EXAMPLE

    ours = fedlap.glm(EXAMPLE, frames, success="ill")
    read = coefficients(tmp_path / "out")
    np.testing.assert_allclose([float(read[name]["coefficient"]) for name in ours.params.index], ours.params, rtol=1e-9)
    assert "family: binomial, as diagnosis has two values" in done.stdout
    assert (tmp_path / "out" / "data" / "va.csv").exists()


def test_its_study_file_is_one_for_a_network(files, tmp_path):
    """As its last line says: keys are made for it, a site's file fits it, and its coordinator comes to the same."""
    _, paths = files
    done = fit_here(*paths.values(), "--formula", "ill ~ age + sex", "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = command("study", "new", "wards", "--from", "out/study.toml", cwd=tmp_path)
    assert made.returncode == 0 and "members/north.key" in made.stdout, made.stderr
    checked = command("study", "check", "wards", "--name", "north", "--data", paths["north"], cwd=tmp_path)
    assert checked.returncode == 0 and "Nothing was sent" in checked.stdout, checked.stderr
    study = read_study(tmp_path / "wards")
    sites = {name: RegressionSite.of(study, name, path, tmp_path / "state" / name) for name, path in paths.items()}
    found = RegressionCoordinator(study, InProcess(sites), tmp_path / "server").run().fit
    read = coefficients(tmp_path / "out")
    assert [float(read[name]["coefficient"]) for name in found.params.index] == found.params.tolist()


def test_a_model_that_predicts_from_the_same_files(files, tmp_path):
    _, paths = files
    made = tmp_path / "data"
    made.mkdir()
    for name, path in paths.items():
        pd.read_csv(path)[["age", "sex", "smoker", "ill"]].to_csv(made / f"{name}.csv", index=False)
    done = fit(*sorted(made.iterdir()), "--target", "ill", "--model", "mlp", "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "After 20 rounds" in done.stdout and (tmp_path / "out" / "model" / "model.safetensors").exists()
    cells = json.loads((tmp_path / "out" / "model" / "card.json").read_text())["metrics"]["reliability"]
    page = (tmp_path / "out" / "model" / "report.html").read_text()
    assert f"{len(cells)} cell" in page and "Reliability on held-back rows" in page
    predicted = subprocess.run(
        [sys.executable, "-m", "fedlap", "predict", "out/model", str(made / "north.csv")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert predicted.returncode == 0, predicted.stderr


@pytest.mark.parametrize(
    "change, arguments, said",
    [
        (None, ["--formula", "ill ~ aeg + sex"], "no file has a column 'aeg'; did you mean 'age'?"),
        (None, ["--formula", "ill ~ age +"], "position"),
        (None, ["--formula", "ill ~ patient"], "looks like an identifier"),
        (None, ["--formula", "ward ~ age", "--family", "binomial"], "expected 0 and 1"),
        (None, ["--formula", "ill ~ age", "--family", "poison"], "did you mean 'poisson'"),
        (None, ["--formula", "ill ~ age", "--duration", "years", "--family", "poisson"], "--duration goes with"),
        (None, [], "--formula is missing"),
        (("south", "age", "n/a"), ["--formula", "ill ~ age"], "south.csv, row 2, column age: found 'n/a'"),
        (("south", "age", "61,5"), ["--formula", "ill ~ age"], "write a decimal point"),
        (("south", "sex", None), ["--formula", "ill ~ sex"], "south.csv: there is no column 'sex'"),
        (("south", "smoker", "2020-01-05"), ["--formula", "ill ~ smoker"], "south.csv, row 2, column smoker"),
    ],
)
def test_a_clumsy_user_is_told_what_to_do_and_nothing_is_written(change, arguments, said, files, tmp_path):
    frames, _ = files
    for name, frame in frames.items():
        frame = frame.astype(object)
        if change is not None and change[0] == name:
            if change[2] is None:
                frame = frame.drop(columns=change[1])
            else:
                frame.loc[0, change[1]] = change[2]
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    done = fit_here("north.csv", "south.csv", "west.csv", *arguments, "--output", "out", cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"north.csv", "south.csv", "west.csv"}


def test_dates_two_columns_of_one_name_and_an_old_folder(tmp_path):
    text = "age,seen,age,ill\n50,2020-01-02,1,1\n40,2020-01-03,1,0\n"
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(text)
    done = fit_here("a.csv", "b.csv", "--formula", "ill ~ age", cwd=tmp_path)
    assert "two columns are named 'age'" in done.stderr
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(text.replace("age,ill", "sort,ill"))
    done = fit_here("a.csv", "b.csv", "--formula", "ill ~ seen", cwd=tmp_path)
    assert "column 'seen' holds dates, such as 2020-01-02" in done.stderr
    (tmp_path / "out").mkdir()
    done = fit_here("a.csv", "b.csv", "--formula", "ill ~ age", "--output", "out", cwd=tmp_path)
    assert "out: exists already" in done.stderr
