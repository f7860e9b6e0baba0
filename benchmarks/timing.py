"""Side-by-side timing: contestants take turns in one process, so that all see the same machine."""

import json
import os
import statistics
import subprocess
import time


def interleave(contestants, repeats, warm_up=1):
    """Seconds of every contestant (a name and a function that returns when its work is done), turn by turn."""
    for _ in range(warm_up):
        for work in contestants.values():
            work()
    seconds = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def show(title, seconds, reference):
    """Median, quartiles, and the ratio of medians to the reference."""
    print(f"\n{title}")
    print(f"{'':44}{'median':>12}{'quartiles':>22}{'ratio':>9}")
    base = statistics.median(seconds[reference])
    for name, values in seconds.items():
        middle = statistics.median(values)
        low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (middle,) * 3
        print(f"{name:44}{_text(middle):>12}{_text(low) + ' – ' + _text(high):>22}{middle / base:>8.2f}x")


def _text(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


class Child:
    """A warm process that answers every line with one of numbers: it is asked when it is its turn."""

    def __init__(self, command, **variables):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env={**os.environ, **variables}, **pipes)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self):
        self.process.stdin.write("\n")
        return self.hear()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def load():
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 1)
