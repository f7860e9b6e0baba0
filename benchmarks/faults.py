"""Faults over real processes: what each costs, and whether the study still ends in the undisturbed run's bits.

python benchmarks/faults.py [FAULT …] [--rounds 6]          needs the extra fedlap[flower]

Four hospitals with TLS and keys on this machine, a new federation for each fault. It strikes after the second round;
its time is from then until the next round is done, beside the time of a round that nothing disturbs.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fedlap.cli import demo
from fedlap.cli.processes import Processes, free_port
from fedlap.study import model as fitted
from fedlap.study.agreement.contract import Study
from fedlap.study.protocol.checkpoint import read_progress
from fedlap.study.protocol.messages import digest, pack

STRIKE, LONGEST, VICTIM = 2, 240, "hungarian"


class Line:
    """A line between one member and the server, which can be cut, or go silent."""

    def __init__(self, port: int) -> None:
        self.port, self.server, self.silent = free_port(), port, threading.Event()
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            with suppress(OSError):
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.server))
                self.open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                while self.silent.is_set():  # what was sent meanwhile arrives late, as on a line that came back
                    time.sleep(0.05)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.close()

    def cut(self) -> None:
        """End all connections at once, without a farewell."""
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                end.close()
        self.open.clear()


class Federation(NamedTuple):
    """A study under way."""

    study: Study
    files: dict[str, Path]
    processes: Processes
    line: Line

    def rounds(self) -> int:
        """How many rounds are done."""
        path = self.study.folder / "state" / "run" / "checkpoint.npz"
        return read_progress(path).round if path.exists() else 0

    def start_node(self, name: str, *words: str) -> None:
        """Start a member; the victim reaches the server through the line."""
        folder = self.study.folder.parent / f"at-{name}"
        if not folder.exists():
            (folder / "members").mkdir(parents=True)
            text = self.study.path.read_text()
            if name == VICTIM:
                text = text.replace(self.study.address, f"127.0.0.1:{self.line.port}")
            (folder / "study.toml").write_text(text)
            shutil.copy(self.study.folder / "ca.crt", folder)
            shutil.copy(self.study.member(name).private_key, folder / "members")
            shutil.copy(self.files[name], folder / "data.csv")
        self.processes.start(name, "node", folder, "--name", name, "--data", folder / "data.csv", *words)

    def end(self, name: str, how: signal.Signals) -> None:
        """End a process by a signal, and wait until it has."""
        process = self.processes.running.pop(name)
        os.killpg(process.pid, how)
        process.wait(60)

    def state(self, name: str) -> Path:
        """Where a member keeps what it remembers."""
        return self.study.folder.parent / f"at-{name}" / "state" / name


def kill_a_node(it: Federation) -> None:
    """a node is killed, and started again"""
    it.end(VICTIM, signal.SIGKILL)
    it.start_node(VICTIM)


def stop_a_node(it: Federation) -> None:
    """a node is stopped (SIGTERM), and started again"""
    it.end(VICTIM, signal.SIGTERM)
    it.start_node(VICTIM)


def hang_a_node(it: Federation) -> None:
    """a node hangs for 20 s"""
    process = it.processes.running[VICTIM]
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(20)
    os.killpg(process.pid, signal.SIGCONT)


def kill_the_server(it: Federation) -> None:
    """the server is killed, and started again"""
    it.end("server", signal.SIGKILL)
    demo.start_server(it.processes, it.study)


def stop_the_server(it: Federation) -> None:
    """the server is stopped (SIGTERM), and started again"""
    it.end("server", signal.SIGTERM)
    demo.start_server(it.processes, it.study)


def kill_the_coordinator(it: Federation) -> None:
    """`fedlap study run` is killed, and started again"""
    it.end("run", signal.SIGKILL)
    demo.start_run(it.processes, it.study)


def stop_the_coordinator(it: Federation) -> None:
    """`fedlap study run` is stopped (SIGINT), and started again"""
    it.end("run", signal.SIGINT)
    demo.start_run(it.processes, it.study)


def kill_everything(it: Federation) -> None:
    """a power cut: all six processes are killed, and started again"""
    for name in [*it.files, "server", "run"]:
        it.end(name, signal.SIGKILL)
    demo.start_server(it.processes, it.study)
    for name in it.files:
        it.start_node(name)
    demo.start_run(it.processes, it.study)


def cut_a_line(it: Federation) -> None:
    """a member's connections are cut"""
    it.line.cut()


def silence_a_line(it: Federation) -> None:
    """a member's line is silent for 20 s"""
    it.line.silent.set()
    time.sleep(20)
    it.line.silent.clear()


def lose_a_store(it: Federation) -> None:
    """a member's store is lost; its operator asks for it back"""
    it.end(VICTIM, signal.SIGKILL)
    shutil.rmtree(it.state(VICTIM))
    it.start_node(VICTIM, "--restore")


def leave_one_out(it: Federation) -> None:
    """a member's store is lost for good; the run goes on --without it"""
    it.end(VICTIM, signal.SIGKILL)
    shutil.rmtree(it.state(VICTIM))
    it.end("run", signal.SIGINT)
    it.processes.start("run", "study", "run", it.study.path, "--without", VICTIM)


def fill_a_sites_disk(it: Federation) -> None:
    """a site's disk is full for 20 s (needs root)"""
    it.end(VICTIM, signal.SIGTERM)
    with small_disk(it.state(VICTIM)) as fill:
        it.start_node(VICTIM)
        fill(20)
        wait(lambda: it.rounds() > STRIKE, it)
        it.end(VICTIM, signal.SIGTERM)
    it.start_node(VICTIM)


def fill_the_servers_disk(it: Federation) -> None:
    """the disk of the server's database is full for 20 s (needs root)"""
    it.end("server", signal.SIGTERM)
    with small_disk(it.study.folder / "state" / "server") as fill:
        before = it.processes.read("server").count("ready.")
        demo.start_server(it.processes, it.study)
        wait(lambda: it.processes.read("server").count("ready.") > before, it)
        fill(20)
        wait(lambda: it.rounds() > STRIKE, it)
        it.end("server", signal.SIGTERM)
    demo.start_server(it.processes, it.study)


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[float], None]]:
    """A folder on a disk of 64 MB of its own, with what is in it; what is given fills it for so many seconds."""
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", folder], check=True)
    shutil.copytree(kept, folder, dirs_exist_ok=True)

    def fill(seconds: float) -> None:
        filler = folder / "filler"
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        time.sleep(seconds)
        filler.unlink(missing_ok=True)

    try:
        yield fill
    finally:
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        subprocess.run(["umount", "-l", folder], check=True)
        shutil.copytree(kept, folder, dirs_exist_ok=True)


FAULTS: list[Callable[[Federation], None]] = [
    kill_a_node,
    stop_a_node,
    hang_a_node,
    kill_the_server,
    stop_the_server,
    kill_the_coordinator,
    stop_the_coordinator,
    kill_everything,
    cut_a_line,
    silence_a_line,
    lose_a_store,
    leave_one_out,
    fill_a_sites_disk,
    fill_the_servers_disk,
]


def strike(fault: Callable[[Federation], None], rounds: int) -> tuple[float, float, str]:
    """Seconds until the next round is done, seconds of a round undisturbed, and how the study ended."""
    with tempfile.TemporaryDirectory(prefix="fedlap-faults-") as name:
        folder = Path(name)
        study, files = demo.make(folder / "heart", rounds, "fedlap_cov", deadline=60)
        with Processes(folder / "logs") as processes:
            it = Federation(study, files, processes, Line(study.port))
            demo.start_server(processes, study)
            for member in files:
                it.start_node(member)
            demo.start_run(processes, study)
            wait(lambda: it.rounds() >= STRIKE, it)
            began = time.monotonic()
            fault(it)
            wait(lambda: it.rounds() > STRIKE, it)
            seconds = time.monotonic() - began
            processes.wait_until_over("run", LONGEST)
            model = fitted.load(study.folder / "model")
            report = (study.folder / "model" / "history.json").read_text()
        history = json.loads(report)
        usual = statistics.median(entry["seconds"] for entry in history[STRIKE + 1 :])
        same = model.card["weights_sha256"] == digest(pack(demo.simulated(study, files)))
        absent = sum(bool(entry["absent"]) for entry in history)
        end = f"without {', '.join(model.card['without'])}" if model.card.get("without") else "OTHER BITS"
        return seconds, usual, f"{'same bits' if same else end}, {absent} rounds with somebody absent"


def wait(done: Callable[[], bool], it: Federation) -> None:
    """Until something is so."""
    end = time.monotonic() + LONGEST
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"waited {LONGEST} s:\n{it.processes.read('run')}\n{it.processes.read(VICTIM)}")
        time.sleep(0.02)


def main() -> None:
    """Strike with each fault, and print a line of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help=", ".join(fault.__name__ for fault in FAULTS))
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    known = {fault.__name__: fault for fault in FAULTS}
    if unknown := set(chosen.faults) - known.keys():
        parser.error(f"no fault {', '.join(sorted(unknown))}; expected some of {', '.join(known)}")
    print(f"{'what happens':<62} {'until the next round':>21} {'usual':>7}   end")
    for name in chosen.faults or known:
        seconds, usual, end = strike(known[name], chosen.rounds)
        print(f"{known[name].__doc__:<62} {seconds:>19.1f} s {usual:>5.1f} s   {end}", flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
