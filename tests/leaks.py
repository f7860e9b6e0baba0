"""What must stand in no log: keys, the server's secret, and the cells of patients' files."""

import csv

LONG = 7  # letters: shorter cells stand in any text by chance


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def leaked(folder, study, files):
    """Where in the logs below a folder something of these stands: the file's name, and what kind of thing it is."""
    kept = {
        "key": [line for path in study.folder.rglob("*.key") for line in path.read_text().splitlines()],
        "secret": [(study.folder / "state" / "server" / "secret").read_text()],
        "cell": [cell for path in files.values() for row in _rows(path) for cell in row],
    }
    logs = [path for ending in ("log", "jsonl") for path in folder.rglob(f"*.{ending}")]
    assert logs and all(any(len(each) >= LONG for each in known) for known in kept.values())
    said = {path.name: path.read_text(errors="replace") for path in logs}
    return [
        (name, kind)
        for kind, known in kept.items()
        for name, text in said.items()
        if any(len(each) >= LONG and each in text for each in known)
    ]
