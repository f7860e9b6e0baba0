"""A contestant as a process: `python -m benchmarks.peers.child NAME VARIANT WORK ALGORITHM ANSWER`."""

import importlib
import sys

from benchmarks.peers.turns import Turns
from benchmarks.peers.work import load


def main():
    name, variant, path, algorithm, answer = sys.argv[1:]
    contestant = importlib.import_module(f"benchmarks.peers.contestants.{name}")
    work, turns = load(path, algorithm), Turns(answer)
    contestant.play(work, variant, turns)
    if turns.last_asked == "double":
        turns.again()
        contestant.play(work.double(), variant, turns)


if __name__ == "__main__":
    main()
