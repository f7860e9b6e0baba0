"""A node and its server as real processes: a wrong clock, variables of Flower's, an image after a crash, Ctrl-C."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedlap.cli import demo
from fedlap.cli.processes import Processes

# Read by every Python that has this folder on its path. OpenSSL, which judges certificates, keeps the machine's clock.
WRONG_CLOCK = """
import datetime, pathlib, time

ahead = lambda: float(pathlib.Path(__file__).with_name("ahead").read_text())
right, Right = time.time, datetime.datetime
time.time = lambda: right() + ahead()

class Wrong(Right):
    @classmethod
    def now(cls, tz=None):
        return Right.now(tz) + datetime.timedelta(seconds=ahead())

datetime.datetime = Wrong
"""
OPENING = {"FLWR_INTERNAL_GRPC_FLEET_API": "1", "FLWR_INTERNAL_GRPC_CONTROL_API": "1"}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A study, its server, and what starts nodes: with images of crashes allowed, and Flower's variables set."""
    folder = tmp_path_factory.mktemp("node")
    study, files = demo.make(folder / "heart", 1, "fedavg")
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        with Processes(folder / "logs", OPENING) as processes:
            demo.start_server(processes, study)
            yield study, files, processes
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


class Clock:
    """The clock of the nodes that are started from now on: so many seconds ahead of everybody's."""

    def __init__(self, folder, processes):
        self.folder = folder
        (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
        self.set(0)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        processes.environment = {**processes.environment, "PYTHONPATH": path.rstrip(os.pathsep)}

    def set(self, ahead):
        new = self.folder / "new"
        new.write_text(str(ahead))
        new.replace(self.folder / "ahead")


@pytest.fixture
def clock(network, tmp_path):
    processes = network[2]
    before = processes.environment
    yield Clock(tmp_path, processes)
    processes.environment = before


def said(processes, name, text, times):
    """Wait until a node has said something so many times; what it said, with numbers in place."""
    end = time.monotonic() + demo.START
    while len(found := re.findall(text, processes.read(name))) < times:
        assert processes.running[name].poll() is None, processes.read(name)
        assert time.monotonic() < end, processes.read(name)
        time.sleep(0.1)
    return found


def test_a_node_with_a_wrong_clock_says_by_how_much_and_goes_on_once_it_is_right(network, clock):
    study, files, processes = network
    clock.set(3600)
    demo.start_node(processes, study, "va", files["va"])
    (ahead,) = said(processes, "va", r"clock is (\d+) s ahead of the server's.*; trying again every 3 s\n", 1)
    assert abs(int(ahead) - 3600) <= 10
    clock.set(0)
    said(processes, "va", "connected to", 1)
    clock.set(-4000)
    (behind,) = said(processes, "va", r"clock is (\d+) s behind the server's", 1)
    assert abs(int(behind) - 4000) <= 10
    clock.set(0)
    said(processes, "va", "connected to", 2)
    text = processes.read("va")
    assert text.count("this machine's clock is") == 2
    assert "Traceback" not in text

    process = processes.running["va"]
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert processes.read("va").endswith("stopped; the same command goes on\n")


def test_a_node_whose_patience_runs_out_before_its_clock_is_right_is_an_error(network, clock):
    study, files, processes = network
    clock.set(60)
    words = ("--name", "switzerland", "--data", files["switzerland"], "--patience", 0)
    process = processes.start("switzerland", "node", study.path, *words)
    assert process.wait(demo.START) == 2
    last = processes.read("switzerland").splitlines()[-1]
    assert re.match(r"error: this machine's clock is (5\d|6\d|70) s ahead of the server's, .*; set the clock", last)


def ports(process):
    """The ports at which a process listens. Root alone can tell: these are closed to their own account."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir() if path.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *others = line.split()
            if state == "0A" and f"socket:[{others[5]}]" in sockets:
                found.add(int(local.rpartition(":")[2], 16))
    return found


def largest_image(process):
    (line,) = [line for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines() if "core file" in line]
    return line.split()[4:6]


@pytest.mark.skipif(not Path("/proc/self/limits").exists() or os.geteuid() != 0, reason="needs root and Linux's /proc")
def test_nothing_more_is_opened_and_nothing_left_of_a_crash_whatever_the_environment_says(network):
    study, files, processes = network
    demo.start_node(processes, study, "hungarian", files["hungarian"])
    said(processes, "hungarian", "connected to", 1)
    demo.start_run(processes, study)
    running = {name: processes.running[name] for name in ("server", "hungarian", "run")}
    said(processes, "hungarian", "to send", 1)  # so the coordinator runs
    assert {name: ports(process) for name, process in running.items()} == {
        "server": {study.port},
        "hungarian": set(),
        "run": set(),
    }
    assert [largest_image(process) for process in running.values()] == [["0", "0"]] * 3
    for name in running:
        assert f"{', '.join(sorted(OPENING))}: set in the environment, and of no effect here" in processes.read(name)
    process = processes.running["hungarian"]
    process.terminate()
    assert process.wait(60) == 143
    demo.start_node(processes, study, "hungarian", files["hungarian"])
    said(processes, "hungarian", "connected to", 2)  # at once: the first has said good-bye
    assert "did not let this node in" not in processes.read("hungarian")


def crashes(folder, code):
    """Whether a Python that aborts after this code leaves an image of itself; as far as this system makes any."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    preparation = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most}));"
    process = subprocess.Popen([sys.executable, "-c", f"{preparation} {code}; os.abort()"], cwd=folder)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == -signal.SIGABRT
    return os.WCOREDUMP(status)


def test_a_process_that_crashes_leaves_no_image_even_if_its_limit_is_lifted(tmp_path):
    if not crashes(tmp_path, "pass"):
        pytest.skip("this system keeps no images of crashes")
    assert not crashes(tmp_path, "from fedlap.memory import never_dump; never_dump()")
    lifted = "resource.setrlimit = print; from fedlap.memory import never_dump; never_dump()"
    assert not crashes(tmp_path, lifted)
