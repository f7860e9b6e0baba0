"""The numbers that the README shows are those that its commands give."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import fedlap
from fedlap.experiments import spec

README = (Path(__file__).parent.parent / "README.md").read_text()


def columns(text):
    """The columns of a Markdown table that begins with the head "algorithm", by their heads, without the seconds."""
    table = re.search(r"^\| algorithm \|.*\n(?:\|.*\n)+", text, re.M).group()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {head: cells for head, *cells in zip(*rows, strict=True) if head != "seconds"}


@pytest.fixture
def single():
    """The precision that users have."""
    with jax.enable_x64(False):
        yield


def test_the_regression_is_what_the_first_command_prints(tmp_path):
    command = [sys.executable, "-m", "fedlap", "fit", "--output", str(tmp_path / "results")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    shown = re.search(r"^    diagnosis ~ .*?(?=\n\nand writes a folder)", README, re.M | re.S).group()
    wanted = [line.strip() for line in shown.splitlines()]
    found = [line.strip() for line in printed.splitlines()]
    place = found.index(wanted[0])
    decrement = lambda lines: [re.sub(r"decrement .*", "", line) for line in lines]  # rounding, on other machines
    assert decrement(found[place : place + len(wanted)]) == decrement(wanted)
    switzerland = pd.read_csv(tmp_path / "results/data/switzerland.csv")
    assert f"In one hospital {100 * (switzerland['diagnosis'] == 'ill').mean():.0f} % are ill" in README


def test_the_first_table_is_what_its_command_prints(tmp_path):
    command = [sys.executable, "-m", "fedlap", "run", "--output", str(tmp_path / "results")]
    subprocess.run(command, check=True, capture_output=True, timeout=600, env={**os.environ, "JAX_ENABLE_X64": "0"})
    made, shown = columns((tmp_path / "results/table.md").read_text()), columns(README)
    assert shown == made


def test_the_hospitals_are_described():
    federation = fedlap.data.heart()
    assert f"{len(federation.test_labels)} test patients" in README
    first, *others = federation.sizes.tolist()
    assert f"{first}, {', '.join(map(str, others[:-1]))} and {others[-1]} training patients" in README
    classes = [set(federation.of(k)[1].tolist()) for k in range(len(federation.clients))]
    assert {1} in classes


def bundled(algorithm, rounds, **changes):
    """The bundled settings with one method and more rounds, seed 0."""
    settings = spec.resolve(*spec.read_table())
    return fedlap.simulate(
        algorithm,
        settings.make_federation(0),
        settings.make_model(),
        **{"solver": settings.make_solver(), **changes},
        rounds=rounds,
        seed=0,
    )


def test_what_pooling_would_give():
    """The optimum of the pooled rows, which full covariances and Newton steps reach (tests/test_full_covariance.py)."""
    exact = fedlap.FedLapCov(delta=1.0, covariance="full", rho=1.0)
    history = bundled(exact, 10, solver=fedlap.newton())
    accuracy, nll = history.accuracy[-1], history.nll[-1]
    assert f"{100 * accuracy:.1f} %" in README and f"{nll:.3f}" in README


def test_how_far_fedavg_and_fedlap_come_in_the_end(single):
    """FedAvg stays where it is, FedLap goes on; the README gives their NLL after 300 rounds."""
    settings = spec.resolve(*spec.read_table())
    last = {name: bundled(settings.make_algorithm(name), 300).nll[-1] for name in ("fedavg", "fedlap")}
    assert f"after 300 rounds {last['fedavg']:.2f} and {last['fedlap']:.2f}" in README.replace("\n", " ")
    assert np.isfinite(list(last.values())).all()
