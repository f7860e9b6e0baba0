"""A contestant's side of the turns: rounds are done when asked for, timed here, and answered in JSON."""

import json
import os
import sys
import time

import numpy as np

LEAST_SECONDS = 0.1  # a turn is as many rounds as this takes, and at least one


class Turns:
    """Asks for rounds, until there are enough. Between two calls of `over` the clock is running."""

    def __init__(self, answer_file):
        self._answer_file = answer_file
        # Libraries print; only what is said here is for the one who asks.
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start()

    def over(self, read) -> bool:
        """A round is done, whose weights `read` gives; whether it was the last one wanted."""
        spent = time.perf_counter() - self._began
        self._rounds += 1
        if spent < LEAST_SECONDS and not self._first:
            return False
        self._reply(seconds=spent / self._rounds, rounds=self._rounds, memory=peak_memory())
        while (asked := sys.stdin.readline().strip()) == "answer":
            np.savez(self._answer_file, *read())
            self._reply()
        self._first = False
        self.last_asked = asked
        self._restart()
        return asked != "turn"

    def again(self):
        """Before other work: its first round is answered by itself, like the very first."""
        self._start()

    def _start(self):
        self._first = True
        self._restart()

    def _restart(self):
        self._rounds, self._began = 0, time.perf_counter()

    def _reply(self, **what):
        print(json.dumps(what), file=self._replies, flush=True)


def peak_memory() -> float:
    """Of this process, in MB. Not getrusage: a new process inherits the peak of the one that started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
