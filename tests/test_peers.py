"""The benchmark of peers, without the peers: the work they share, the check of weights, tables and picture."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import chart, report, turns, weights, workloads
from benchmarks.peers.contestants.fedlap import simulation
from benchmarks.peers.work import channels_first, channels_last, load, save

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("work") / "work.npz"
    save(workloads.draw(workloads.WORKLOADS["logistic-10"], None), path)
    return load(path, "FedProx")


def test_every_epoch_of_a_client_visits_its_rows_once(work):
    ends = np.cumsum(work.sizes)
    for client in work.clients:
        own = np.arange(ends[client] - work.sizes[client], ends[client])
        visited, counts = np.unique(np.concatenate(work.batches(client)), return_counts=True)
        np.testing.assert_array_equal(visited, own)
        np.testing.assert_array_equal(counts, work.epochs)


def by_hand(work):
    """FedProx with Adam, client by client, in NumPy."""
    (start,), answer = work.weights, 0
    for client in work.clients:
        w, m, s = start.astype(float), 0, 0
        for step, rows in enumerate(work.batches(client), 1):
            logits = work.inputs[rows] @ w.T
            errors = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(2)[work.labels[rows]]
            gradient = errors.T @ work.inputs[rows] / len(rows) + work.prox * (w - start)
            m, s = 0.9 * m + 0.1 * gradient, 0.999 * s + 0.001 * gradient**2
            w = w - work.rate * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
        answer = answer + work.sizes[client] / work.sizes.sum() * w
    return [answer]


def test_a_round_of_fedlap_is_the_one_that_all_are_given(work):
    run = simulation(work)
    plan = run.plan(0)
    plan = plan._replace(batches=plan.batches._replace(rows=work.rows, steps=work.steps))
    answer = workloads.to_flat(run.step(run.init(), plan).server.w.tree)
    assert weights.difference(answer, by_hand(work), work.weights)["length"] < 1e-5


def test_double_precision_of_a_network_of_convolutions_is_of_two_clients(work):
    double = dataclasses.replace(work, model="cnn").double()
    assert double.inputs.dtype == double.weights[0].dtype == np.float64
    assert len(double.sizes) == len(double.rows) == len(double.steps) == 2
    assert len(double.inputs) == len(double.labels) == double.sizes.sum() > double.rows.max()
    assert len(work.double().sizes) == len(work.sizes)


def test_layouts_are_of_the_same_network():
    """A convolution that sees one pixel and a dense layer after it, on channels first and on channels last."""
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape) for shape in ((5, 3, 1, 1), (5,), (7, 5 * 4), (7,), (2, 7), (2,))]
    image = rng.normal(size=(2, 2, 3))
    outputs = np.einsum("ochw,yxc->oyx", given[0], image) + given[1][:, None, None]
    first = given[4] @ (given[2] @ outputs.ravel() + given[3]) + given[5]
    last = channels_last(given)
    outputs = np.einsum("hwco,yxc->yxo", last[0], image) + last[1]
    np.testing.assert_allclose(last[4] @ (last[2] @ outputs.ravel() + last[3]) + last[5], first)
    for there, back in zip(given, channels_first(last), strict=True):
        np.testing.assert_array_equal(there, back)


def test_a_difference_is_a_part_of_the_way():
    start, reference = [np.zeros(2), np.zeros((1, 1))], [np.array([3.0, 0.0]), np.array([[4.0]])]
    answer = [np.array([3.0, 0.5]), np.array([[4.0]])]
    assert weights.difference(answer, reference, start) == {"length": 0.1, "largest": 0.125}
    assert weights.difference([np.full(2, np.nan), np.ones((1, 1))], reference, start)["length"] == np.inf
    assert weights.difference(start, start, start)["length"] == np.inf


def an_entry(peer, setting, seconds, off=0.0):
    numbers = {"memory": 300.0, "start_up": 2.5, "first": 1.0, "single": {"length": 1e-6}, "double": {"length": off}}
    return {"contestant": f"{peer}, {setting}", "peer": peer, "seconds": seconds, **numbers}


@pytest.fixture
def results():
    entries = [
        an_entry("fedlap", "as it is", [0.1, 0.2, 0.3]),
        an_entry("other", "slow", [9.0, 9.0, 9.0]),
        an_entry("other", "fast", [0.5, 0.5, 1.5]),
    ]
    about = {"workload": "a", "title": "A workload", "load": [1.0, 2.0], "busy": False}
    return {"cells": [{**about, "algorithm": name, "entries": [*entries]} for name in ("FedAvg", "FedProx")]}


def test_the_table_has_each_peer_in_its_fastest_configuration(results):
    lines = report.tables(results).splitlines()
    assert lines[0] == "**A workload, FedAvg** (3 turns, load average 1.0–2.0)"
    assert [line for line in lines if line.startswith("| other, fast")] == 2 * [
        "| other, fast | 500 ms | 500 ms – 1.00 s | 2.50 | 300 MB | 2.5 s | 0.5 s |"
    ]
    assert not [line for line in lines if "slow" in line]
    assert "| other, slow | 9.00 s | 9.00 s – 9.00 s | 45.00 |" in report.tables(results, full=True)


def test_a_run_replaces_its_own_cells(results):
    first, second = results["cells"]
    other = {**first, "workload": "b"}
    again = {**second, "load": [0.0, 0.0]}
    assert report.together([second, first], [other, again], ["b", "a"]) == [other, first, again]


def test_other_work_is_named(results):
    assert weights.strangers(results["cells"]) == []
    results["cells"][1]["entries"][2] = an_entry("other", "fast", [0.5], off=2e-3)
    assert weights.strangers(results["cells"]) == ["A workload, FedProx: other, fast is 2.0e-03 of the way off"]
    results["cells"][1]["entries"][2] = an_entry("other", "fast", [0.5], off=float("nan"))
    assert len(weights.strangers(results["cells"])) == 1


def test_the_picture_is_drawn(results, tmp_path):
    chart.draw(results, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 5_000


def test_the_committed_results_are_of_the_pins_and_of_the_same_work():
    results = json.loads(chart.RESULTS.read_text())
    assert weights.strangers(results["cells"]) == []
    assert {(cell["workload"], cell["algorithm"]) for cell in results["cells"]} == {
        (workload, algorithm) for workload in workloads.WORKLOADS for algorithm in ("FedAvg", "FedProx")
    }
    for pins in (ROOT / "benchmarks/peers/requirements").glob("*.txt"):
        pinned = dict(line.split("==") for line in pins.read_text().split() if "==" in line)
        found = {name: version.split("+")[0] for name, version in results["versions"][pins.stem].items()}
        assert found == {name: pinned[name] for name in found}


def test_the_page_has_the_committed_results():
    assert report.PAGE.read_text() == report.page(json.loads(chart.RESULTS.read_text()))


CONTESTANT = """
from benchmarks.peers.turns import Turns
turns, done = Turns("answer.npz"), 0
print("a library's word")
while True:
    done += 1
    if turns.over(lambda: [[done]]):
        break
"""


def test_turns_are_answered_one_by_one_whatever_is_printed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", CONTESTANT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        first = json.loads(process.stdout.readline())
        assert first["rounds"] == 1 and first["memory"] > 1
        print("answer", file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline()) == {}
        assert np.load(tmp_path / "answer.npz")["arr_0"] == 1
        print("turn", file=process.stdin, flush=True)
        turn = json.loads(process.stdout.readline())
        assert turn["rounds"] * turn["seconds"] >= turns.LEAST_SECONDS
        assert turn["rounds"] > 1
    assert process.returncode == 0
