"""A regression over real processes on loopback with TLS and keys: killed, restarted, in the end the pooled answer."""

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

import fedlap
import regression_studies as regressions
from fedlap.cli import demo
from fedlap.cli.processes import Processes, free_port
from fedlap.study.agreement.scaffold import new_regression
from fedlap.study.agreement.template import regression_text
from fedlap.study.protocol.checkpoint import read_progress
from fedlap.study.results import load_regression
from fedlap.study.table.columns import Column

USED = ["ill", "age", "sex", "smoker"]
FORMULA = "ill ~ age + sex + smoker"


def steps_done(study):
    path = study.folder / "state" / "run" / "checkpoint.npz"
    return read_progress(path).round if path.exists() else 0


def wait_for_step(study, processes, step):
    end = time.monotonic() + 120
    while steps_done(study) < step:
        assert time.monotonic() < end, processes.read("run")
        time.sleep(0.02)


def test_kill_a_node_and_the_server_and_end_in_the_pooled_answer(tmp_path):
    frames = regressions.hospitals()
    columns = [Column.parse(name, regressions.COLUMNS[name]) for name in USED]
    settings = {"formula": FORMULA, "family": "binomial", "robust": True}
    text = regression_text(
        "wards", regressions.MEMBERS, columns, settings, address=f"127.0.0.1:{free_port()}", deadline=20
    )
    study = new_regression(tmp_path / "wards", text)
    files = {name: regressions.write(tmp_path, name, frames[name][USED]) for name in regressions.MEMBERS}
    with Processes(tmp_path / "logs") as processes:
        demo.start_server(processes, study)
        for name, path in files.items():
            demo.start_node(processes, study, name, path)
        demo.start_run(processes, study)
        wait_for_step(study, processes, 1)
        processes.kill("south")
        demo.start_node(processes, study, "south", files["south"])
        wait_for_step(study, processes, 3)
        processes.kill("run")
        processes.kill("server")
        assert not read_progress(study.folder / "state" / "run" / "checkpoint.npz").finished
        demo.start_server(processes, study)
        demo.start_run(processes, study)
        processes.wait_until_over("run", 150)
        said = {name: processes.read(name) for name in ("server", "run", *files)}

    ordered = {name: frames[name] for name in sorted(frames)}
    here = fedlap.glm(FORMULA, ordered)
    pooled = fedlap.glm(FORMULA, {"all": pd.concat(frames.values(), ignore_index=True)})
    assert "rounds are done" in said["run"] and str(here.summary()) in said["run"]
    result = study.folder / "result"
    table = pd.read_csv(result / "coefficients.csv", index_col="name", float_precision="round_trip")
    card = load_regression(result / "model").card
    for ours, same, theirs in [
        (table["coefficient"], here.params, pooled.params),
        (table["standard_error"], here.bse, pooled.bse),
        (table["robust_standard_error"], here.robust("rows").bse, pooled.robust("rows").bse),
        (card["log_likelihood"], here.llf, pooled.llf),
    ]:
        np.testing.assert_array_equal(ours, same)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    for name in files:
        log = study.folder / "state" / name / f"audit-{name}.jsonl"
        audited = subprocess.run(
            [sys.executable, "-m", "fedlap", "study", "audit", str(log)], capture_output=True, text=True, timeout=60
        )
        assert audited.returncode == 0 and "unbroken" in audited.stdout, audited.stderr
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        replies = {}
        for entry in entries:
            replies.setdefault((entry["kind"], entry["round"]), set()).add(entry["sha256"])
        assert all(len(each) == 1 for each in replies.values()), "a step has one answer, however often it is asked"
        assert "PRIVATE KEY" not in said[name]
    assert (study.folder / "state" / "server" / "secret").read_text() not in said["server"] + said["run"]
