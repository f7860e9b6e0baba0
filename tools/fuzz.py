"""Give damaged files to everything that reads one, and count what comes of it: words are fine, a traceback is not.

    python tools/fuzz.py --files 3000 --seed 1                    # exit code 1 if any file was bad
    python tools/fuzz.py --replay fuzz-bad/card-17-1              # one that was kept: its traceback

CSV, Parquet, TOML, models, logs, states, messages, certificates and keys: each is a sound file with some changes
(`fuzz_files.py`), handed to the commands in a process of its own with limits of time and memory (`fuzz_readers.py`).
A bad file is kept with its kind, number and seed in its name.
"""

import argparse
import collections
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTCOMES = ("fine", "words", "traceback", "too long", "too large", "crash")
BAD = OUTCOMES[2:]


class Reader:
    """The process that reads; one that died is followed by another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.process = None

    def read(self, word: str) -> dict[str, str]:
        """What came of a file."""
        process = self.process or self.start()
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        code = process.wait()
        self.process = None
        (file,) = [path for path in (self.folder / "scratch").iterdir() if path.is_file()][:1] or [Path(word)]
        found = "too long" if code == -24 else "crash"  # SIGXCPU
        return {"kind": "", "file": str(file), "outcome": found, "said": f"the process ended with {code}"}

    def start(self) -> subprocess.Popen:
        """A process that has read all sound files."""
        script = Path(__file__).with_name("fuzz_readers.py")
        command = [
            sys.executable,
            str(script),
            str(self.folder / "samples"),
            str(self.folder / "scratch"),
            str(self.seed),
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the readers do not start: {process.wait()}")
        self.process = process
        return process

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def main() -> int:
    """The command; 1 if a file was bad."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-bad"), help="where bad files go")
    parser.add_argument("--replay", type=Path, nargs="*", help="read these again")
    given = parser.parse_args()
    words = [str(path) for path in given.replay] if given.replay else [str(number) for number in range(given.files)]
    counts, begun = collections.Counter(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedlap-fuzz-") as folder:
        reader = Reader(Path(folder), given.seed)
        try:
            for word in words:
                found = reader.read(word)
                counts[found["kind"], found["outcome"]] += 1
                if found["outcome"] in BAD or given.replay:
                    tell(found, word, given)
        finally:
            reader.stop()
    return summary(counts, time.monotonic() - begun)


def tell(found: dict[str, str], word: str, given: argparse.Namespace) -> None:
    """Say what came of a file, and keep a bad one."""
    name = Path(word).name
    if not given.replay:
        given.keep.mkdir(parents=True, exist_ok=True)
        name = f"{found['kind'] or 'crash'}-{word}-{given.seed}"
        shutil.copy(found["file"], given.keep / name)
    said = found["said"].strip().splitlines()
    where = [line.strip() for line in said if line.lstrip().startswith("File") and "fedlap" in line]
    print(f"{name}: {found['outcome']}", *(said if given.replay else [*where[-1:], *said[-1:]]), sep="\n  ")


def summary(counts: collections.Counter, seconds: float) -> int:
    """Print a line a kind; 1 if there is anything bad."""
    print(f"{'kind':16}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:16}" + "".join(f"{counts[kind, outcome]:11}" for outcome in OUTCOMES))
    bad = sum(count for (_, outcome), count in counts.items() if outcome in BAD)
    print(f"{sum(counts.values())} files, {bad} bad, {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
