"""Give every line of results files the key that its own spec has now, and leave the rest as it is.

    python tools/rekey_results.py FILE.jsonl …

A line holds the whole spec of its run, so nothing has to run again where keys are made in another way than when it was
written.
"""

import json
import sys
from pathlib import Path

from fedlap import files
from fedlap.experiments import spec
from fedlap.experiments.sweep import Cell


def rekeyed(line):
    """The line with the key of its spec."""
    result = json.loads(line)
    table = dict(result["spec"])
    resolved = spec.resolve(table.pop("name"), table)
    cell = Cell(result["algorithm"], result["setting"], result["seed"], result["held_out"], resolved)
    return line.replace(result["cell"], cell.digest, 1)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        files.write(path, "".join(map(rekeyed, path.read_text().splitlines(keepends=True))))
