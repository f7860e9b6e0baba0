"""A regression over real processes on loopback with TLS and keys: killed, restarted, in the end the pooled answer."""

import re
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import fedlap
import regression_studies as regressions
from disks import maybe_small_disk
from fedlap.cli import demo
from fedlap.cli.main import app
from fedlap.cli.processes import Processes, free_port
from fedlap.study.agreement.scaffold import new_regression
from fedlap.study.agreement.template import regression_text
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.checkpoint import read_progress
from fedlap.study.protocol.refusals import Reason
from fedlap.study.results import load_regression
from fedlap.study.table.columns import Column
from leaks import leaked

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


def full_disks(study, processes, site, run):
    """A site with no room, then the coordinator: each says one sentence, and goes on once there is room."""
    processes.wait_for("west", "connecting to", demo.START)
    site.fill()
    demo.start_run(processes, study)
    begins = " ".join(Reason.DISK.split()[:5])  # the screen breaks lines
    processes.wait_for("run", f"west refuses: {begins}", demo.START)
    full = r"cannot be written \(No space left on device\); make room for [\d,]+ bytes in \S+, where 0 bytes are free"
    said = rf"moments, \S+ s: refused: {site.folder}/audit-west\.jsonl: {full}; it then goes on by itself\n"
    assert re.search(said, processes.read("west")), processes.read("west")
    run.fill()
    site.free()
    assert processes.running["run"].wait(demo.START) == 2, processes.read("run")
    *_, last = processes.read("run").splitlines()
    first = r"(steps-\w+/moments\.npz|audit-heads\.jsonl)"  # written as replies come: which is first is up to them
    said = rf"error: {run.folder}/{first}: {full}, then give the same command again"
    assert re.fullmatch(said, last), last
    assert not any("Traceback" in processes.read(name) for name in ("run", "west"))
    run.free()


def assert_heads_are_in_the_logs(study, files):
    """What the server knows of each member's log, by the command that a member would use."""
    run_folder = study.folder / "state" / "run"
    for name in files:
        log = study.folder / "state" / name / f"audit-{name}.jsonl"
        words = ["study", "audit", str(log), "--head", str(run_folder / "audit-heads.jsonl")]
        audited = subprocess.run([sys.executable, "-m", "fedlap", *words], capture_output=True, text=True, timeout=60)
        assert audited.returncode == 0 and "unbroken" in audited.stdout, audited.stderr
        assert "lines that the server knows of" in audited.stdout
    at_server = CliRunner().invoke(app, ["study", "audit", str(study.folder)])
    assert at_server.exit_code == 0 and at_server.output.count("--head ") == len(files), at_server.output


def test_kill_a_node_and_the_server_and_end_in_the_pooled_answer(tmp_path):
    frames = regressions.hospitals()
    columns = [Column.parse(name, regressions.COLUMNS[name]) for name in USED]
    settings = {"formula": FORMULA, "family": "binomial", "robust": True}
    text = regression_text(
        "wards", regressions.MEMBERS, columns, settings, address=f"127.0.0.1:{free_port()}", deadline=20
    )
    study = new_regression(tmp_path / "wards", text)
    files = {name: regressions.write(tmp_path, name, frames[name][USED]) for name in regressions.MEMBERS}
    with ExitStack() as stack:
        site, run = (stack.enter_context(maybe_small_disk(study.folder / "state" / name)) for name in ("west", "run"))
        processes = stack.enter_context(Processes(tmp_path / "logs"))
        demo.start_server(processes, study)
        for name, path in files.items():
            demo.start_node(processes, study, name, path)
        if site and run:
            full_disks(study, processes, site, run)
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
        assert leaked(tmp_path, study, files) == []
        assert_heads_are_in_the_logs(study, files)
        logs = {name: verify(study.folder / "state" / name / f"audit-{name}.jsonl") for name in files}

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
        entries = logs[name]
        replies = {}
        for entry in entries:
            replies.setdefault((entry["kind"], entry["round"]), set()).add(entry["sha256"])
        assert all(len(each) == 1 for each in replies.values()), "a step has one answer, however often it is asked"
