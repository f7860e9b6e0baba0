"""Where the seconds of `fedlap run` go, with an empty and with a filled compilation cache.

    python benchmarks/startup.py [--repeats 3] [--against CHECKOUT] [-- WORDS]

First the command as it is, until its first round is trained and until its end; in turn with that of another checkout,
if one is named. Then in one thread, looked at two hundred times a second, the processor's seconds: what JAX takes to
import, to trace, to lower and to compile or to find compiled, and what is left as fedlap's own. Of another checkout
these parts have other files, but for JAX's: there only the sums say something. WORDS are for the command: the methods
that both checkouts have, say. Without any, the picture is docs/images/startup.png.
"""

import argparse
import collections
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "startup.png"
CACHES = ("empty cache", "filled cache")
EVERY = 0.005  # seconds between two looks

# The parts, by the end of a file's path and a function in it, or any: the first that is under way anywhere counts.
PARTS = [
    ("XLA: compiling, or finding what is compiled", "jax/_src/compiler.py", "compile_or_get_cached"),
    ("JAX: lowering", "jax/_src/interpreters/mlir.py", "lower_jaxpr_to_module"),
    ("JAX: tracing", "jax/_src/interpreters/partial_eval.py", "trace_to_jaxpr"),
    ("runs told apart", "fedlap/experiments/sweep.py", "digest"),
    ("shown", "fedlap/cli/display.py", "show"),
    ("table and picture", "fedlap/experiments/summary.py", None),
    ("table and picture", "fedlap/experiments/plots.py", None),
    ("rounds, and their evaluation", "fedlap/run/simulation.py", "look"),
    ("minibatches drawn", "fedlap/run/simulation.py", "plan"),
    ("rounds, and their evaluation", "fedlap/run/simulation.py", "step"),
    ("checkpoints", "fedlap/run/checkpoint.py", None),
    ("data read", "fedlap/experiments/runner.py", "_federation"),
    ("set-up of runs", "fedlap/run/simulation.py", "of"),
    ("set-up of runs", "fedlap/run/simulation.py", "init"),
]
JAX_ITSELF = ("import jax, jaxlib, numpy", *dict.fromkeys(name for name, *_ in PARTS[:3]))


def part_of(stack: list[tuple[str, str]]) -> str:
    """The part that a stack of (file, function), the outermost first, is in."""
    for file, function in stack:
        if function == "<module>" and "site-packages" in file:
            package = file.split("site-packages/")[1].split("/")[0]
            return JAX_ITSELF[0] if package in ("jax", "jaxlib", "numpy", "etils", "ml_dtypes", "scipy") else "imports"
    if any(file.startswith("<frozen importlib") for file, _ in stack):
        return "imports"
    for name, end, wanted in PARTS:
        if any(file.endswith(end) and wanted in (None, function) for file, function in stack):
            return name
    return "all else"


def inside(file: str) -> None:
    """Be the command in one thread, stopped for a look now and then; write the processor's seconds in each part."""
    seconds, last = collections.Counter(), time.process_time()

    def look(_: int, frame: types.FrameType | None) -> None:
        nonlocal last
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        now = time.process_time()  # of all threads: a compiler's are waited for
        seconds[part_of(stack[::-1])] += now - last
        last = now

    signal.signal(signal.SIGALRM, look)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # a thread a core is what the command takes
    try:
        runpy.run_module("fedlap", run_name="__main__")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        Path(file).write_text(json.dumps(dict(seconds)))


# From outside ---------------------------------------------------------------------------------------------------------


def environment(checkout: Path, cache: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": str(cache)}


def whole(checkout: Path, cache: Path, folder: Path, words: list[str]) -> tuple[float, float, float]:
    """Seconds from starting the process to the first checkpoint and to the end, and of the processor in all."""
    command = [sys.executable, "-P", "-m", "fedlap", "run", *words, "--output", str(folder)]
    began, used = time.perf_counter(), os.times()
    with subprocess.Popen(command, env=environment(checkout, cache), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(folder.glob("*.*.checkpoints/*.npz")):
            time.sleep(0.005)
        first = time.perf_counter() - began
        process.wait()
    now = os.times()
    worked = now.children_user + now.children_system - used.children_user - used.children_system
    return first, time.perf_counter() - began, worked


def parts(checkout: Path, cache: Path, folder: Path, words: list[str]) -> dict[str, float]:
    """Seconds of every part, in one thread."""
    file = folder.with_suffix(".json")
    command = [sys.executable, "-P", __file__, "--inside", str(file), "run", *words, "--output", str(folder)]
    subprocess.run(command, env=environment(checkout, cache), stdout=subprocess.DEVNULL, check=True)
    return json.loads(file.read_text())


def show_whole(times: dict[tuple[str, str], list[tuple[float, float, float]]]) -> None:
    """Medians and quartiles of the command as it is."""
    print(f"{'':28}{'first round trained':>26}{'all done':>26}{'processor':>26}")
    for (cache, checkout), rows in times.items():
        cells = []
        for column in zip(*rows, strict=True):
            low, middle, high = statistics.quantiles(column, n=4) if len(column) > 1 else column * 3
            cells.append(f"{middle:.2f} s ({low:.2f} – {high:.2f})")
        print(f"{cache + checkout:28}" + "".join(f"{cell:>26}" for cell in cells))
    if len(times) > len(CACHES):
        for cache in CACHES:
            now, before = (rows for (of, _), rows in times.items() if of == cache)
            ratios = [statistics.median(b / a for a, b in zip(*columns, strict=True)) for columns in pairs(now, before)]
            print(f"{cache + ', ratio':28}" + "".join(f"{ratio:>25.2f}x" for ratio in ratios))


def pairs(now: list[tuple], before: list[tuple]) -> list[tuple]:
    """Columns of both, side by side."""
    return list(zip(zip(*now, strict=True), zip(*before, strict=True), strict=True))


def medians(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of every part's seconds, with either cache."""
    names = dict.fromkeys(name for rows in runs.values() for row in rows for name in row)
    return {
        cache: {n: statistics.median(row.get(n, 0.0) for row in rows) for n in names} for cache, rows in runs.items()
    }


def draw(median: dict[str, dict[str, float]], path: Path) -> None:
    """A bar for either cache, of parts: grey is JAX's own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    panel = figure.subplots()
    own = sorted((n for n in median[CACHES[0]] if n not in JAX_ITSELF), key=lambda n: -median[CACHES[0]][n])
    shown, colours = own[:4], ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3")
    for place, of in enumerate(median.values()):
        rest = sum(of.get(name, 0.0) for name in own if name not in shown)
        segments = [*zip(JAX_ITSELF, ("0.85", "0.55", "0.68", "0.78"), strict=True)]
        segments += [*zip(shown, colours, strict=False)]
        left = 0.0
        for name, colour in segments:
            width = of.get(name, 0.0)
            panel.barh(place, width, left=left, color=colour, label=name if place == 0 else None)
            left += width
        panel.barh(place, rest, left=left, color="#e7298a", label="all else of fedlap's" if place == 0 else None)
        panel.text(left + rest, place, f"  {left + rest:.1f} s", va="center", fontsize=9)
    panel.set_yticks(range(len(median)), list(median))
    panel.invert_yaxis()
    panel.set_xlabel("seconds of one processor for `fedlap run`; grey is JAX's and XLA's own")
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def show_parts(median: dict[str, dict[str, float]], title: str) -> None:
    """Medians of every part's seconds, JAX's first."""
    names = dict.fromkeys(name for of in median.values() for name in of)
    print(f"\n{title:48}" + "".join(f"{cache:>16}" for cache in median))
    own = sorted((name for name in names if name not in JAX_ITSELF), key=lambda name: -median[CACHES[0]][name])
    sums = {"JAX's and XLA's own": JAX_ITSELF, "fedlap's own": own}
    for whose, members in sums.items():
        print(f"{whose:48}" + "".join(f"{sum(of.get(n, 0.0) for n in members):>16.2f}" for of in median.values()))
        for name in members:
            print(f"  {name:46}" + "".join(f"{of.get(name, 0.0):>16.2f}" for of in median.values()))


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        file, *sys.argv[1:] = sys.argv[2:]
        return inside(file)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    checkouts = {"": ROOT} | ({", before": asked.against} if asked.against else {})
    times = {(cache, name): [] for cache in CACHES for name in checkouts}
    looked = {name: {cache: [] for cache in CACHES} for name in checkouts}
    for turn in range(asked.repeats):
        with tempfile.TemporaryDirectory() as scratch:
            for cache in CACHES:
                for name in list(checkouts)[:: 1 if turn % 2 else -1]:
                    place = Path(scratch) / f"cache{name}", Path(scratch) / f"{cache}{name}"
                    times[cache, name].append(whole(checkouts[name], *place, asked.words))
                    place = Path(scratch) / f"looked{name}", Path(scratch) / f"{cache} looked{name}"
                    looked[name][cache].append(parts(checkouts[name], *place, asked.words))
    print(f"load {', '.join(f'{number:.1f}' for number in os.getloadavg())}")
    show_whole(times)
    for name, runs in looked.items():
        show_parts(medians(runs), f"one thread, seconds of the processor{name}")
    if not asked.words:
        draw(medians(looked[""]), PICTURE)


if __name__ == "__main__":
    main()
