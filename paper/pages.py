"""Bring docs/tables, their pictures and the README's extract up to the committed results: python paper/pages.py"""

import re
from pathlib import Path

from fedlap.paper import figures, tables, write
from fedlap.paper.rows import ALGORITHMS, Paper
from fedlap.sweeps.choose import PAPER

REPOSITORY = Path(__file__).parents[1]
IMAGES = REPOSITORY / "docs/images"
EXTRACT = {"flamby": "1", "uci-heterog": "1", "uci-homog": "4", "fmnist-homog": "1", "fmnist-heterog": "1"}
COLUMNS = [name for name in ALGORITHMS if name != "fedprox"]


def pages(paper):
    """{path: text}."""
    found = {
        REPOSITORY / f"docs/tables/table-{number}.md": write.markdown(tables.entries(paper, number), number)
        for number in tables.KINDS
    }
    readme = REPOSITORY / "README.md"
    # From the head of its table to the next empty line.
    found[readme] = re.sub(
        r"\| data set \| +\| FedAvg.*?\n\n", lambda _: f"{extract(paper)}\n\n", readme.read_text(), flags=re.DOTALL
    )
    return found


def extract(paper):
    """The last round of a few rows, chosen as in the paper."""
    lines = [["data set", "", *(ALGORITHMS[name] for name in COLUMNS)], ["---"] * (2 + len(COLUMNS))]
    for row, number in EXTRACT.items():
        entries = tables.entries(paper, number, row)
        last = {entry.algorithm: entry for entry in entries if entry.key == entries[-1].key}
        both = [(last[name].ours[PAPER], last[name].published) if name in last else (None, None) for name in COLUMNS]
        lines.append([paper.row(row).title, "ours", *(_number(ours) for ours, _ in both)])
        lines.append(["", "paper", *(_number(published) for _, published in both)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(spread):
    return "–" if spread is None else f"{spread[0]:.1f} ({spread[1]:.1f})"


def main():
    paper = Paper.find(REPOSITORY / "paper")
    for path, text in pages(paper).items():
        path.write_text(text)
    write.picture(tables.entries(paper, "1"), "1", IMAGES / "table-1.png")
    for name, draw in figures.FIGURES.items():
        draw(paper, IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
