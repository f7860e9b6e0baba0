"""How long `fedlap run` takes until its first round is trained, with an empty and with a filled compilation cache.

python benchmarks/startup.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(cache, folder):
    """From starting the process to the first checkpoint, and to the end."""
    command = [sys.executable, "-m", "fedlap", "run", "--output", str(folder)]
    began = time.perf_counter()
    with subprocess.Popen(
        command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and not list(folder.glob("*.*.checkpoints/*.npz")):
            time.sleep(0.005)
        first = time.perf_counter() - began
        process.wait()
    return first, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    times = {"empty cache": [], "filled cache": []}
    for _ in range(parser.parse_args().repeats):
        with tempfile.TemporaryDirectory() as scratch:
            for name, folder in (("empty cache", "first"), ("filled cache", "second")):
                times[name].append(seconds(Path(scratch) / "cache", Path(scratch) / folder))
    print(f"{'':16}{'first round trained':>22}{'all done':>14}")
    medians = {
        name: [statistics.median(column) for column in zip(*pairs, strict=True)] for name, pairs in times.items()
    }
    for name, (first, done) in medians.items():
        print(f"{name:16}{first:>20.2f} s{done:>12.2f} s")
    (cold, cold_all), (warm, warm_all) = medians.values()
    print(f"{'ratio':16}{cold / warm:>21.2f}x{cold_all / warm_all:>13.2f}x")


if __name__ == "__main__":
    main()
