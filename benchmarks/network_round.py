"""Where the seconds of a round over the network go: two hospitals as real processes, TLS and keys, a tiny model.

python benchmarks/network_round.py [ROUNDS]          needs the extra fedlap[flower]
"""

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fedlap.cli import demo
from fedlap.cli.processes import Processes, free_port
from fedlap.flower.environment import prepare
from fedlap.study.agreement import example, scaffold
from fedlap.study.protocol.coordinator import Coordinator

MEMBERS = ("cleveland", "hungarian")
CALLS = ("get_nodes", "push_messages", "pull_messages")  # the coordinator's questions to Flower


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(thing, name, spent):
    """Replace a method by one that adds up its calls and seconds."""
    method = getattr(thing, name)

    def call(*arguments, **options):
        began = time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            calls, seconds = spent.get(name, (0, 0.0))
            spent[name] = calls + 1, seconds + time.perf_counter() - began

    setattr(thing, name, call)


def main(rounds):
    with tempfile.TemporaryDirectory(prefix="fedlap-benchmark-") as name:
        folder = Path(name)
        prepare(folder / "flower")
        text = example.example_study(members=MEMBERS, rounds=rounds, address=f"127.0.0.1:{free_port()}")
        study, files = scaffold.new_study(folder / "heart", text), example.example_files(folder / "data")
        with Processes(folder / "logs") as processes:
            demo.start_server(processes, study)
            for member in MEMBERS:
                demo.start_node(processes, study, member, files[member])
            history, spent, server = run(study, folder, processes, rounds)
            logs = [processes.read(member) for member in MEMBERS]
    computed = [float(seconds) for log in logs for seconds in re.findall(r"round \d+: .* after ([\d.]+) s", log)]
    later = [report.seconds for report in history[1:]]
    low, middle, high = min(later), statistics.median(later), max(later)
    print(f"first round {history[0].seconds:.2f} s, then {low:.2f} to {high:.2f} s, median {middle:.2f} s a round")
    print(f"a site computes {statistics.median(computed):.2f} s a round (median; the first round compiles)")
    print(f"the SuperLink used {server / len(history):.2f} processor seconds a round")
    for call, (count, seconds) in spent.items():
        print(f"the coordinator's {call}: {count / len(later):.1f} calls, {seconds / len(later):.2f} s a round")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def run(study, folder, processes, rounds):
    from fedlap.flower.server import secret
    from fedlap.flower.transport import GridTransport

    spent = {}
    transport = GridTransport(study, secret(study), print)
    try:

        def watch(event):
            if (event.kind, event.step) == ("round", "round 1"):  # from here on: the first round is another matter
                for call in CALLS:
                    timed(transport.link.grid, call, spent)

        before = processor_seconds(processes.running["server"].pid)
        outcome = Coordinator.of(study, transport, folder / "run", watch).run()
        return outcome.history, spent, processor_seconds(processes.running["server"].pid) - before
    finally:
        transport.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
