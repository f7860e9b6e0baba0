"""The documentation runs: every Python block of a page, in order, in one namespace. Its links and its forms hold."""

import ast
import datetime
import importlib
import re
from pathlib import Path

import pytest
import yaml

import fedlap

ROOT = Path(__file__).parent.parent
NOTES = sorted((ROOT / "reproduction/notes").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
REPRODUCTION = ROOT / "docs/reproduction.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "example"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_is_in_blocks_that_run(page):
    """Indented, it would be read by people alone."""
    outside = re.sub(r"^```python\n.*?^```", "", page.read_text(), flags=re.S | re.M)
    assert not re.findall(r"^\s*(?:>>> |from \S+ import |import \w+)", outside, re.M)


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_import_public_names_only(page):
    """What a page tells people to import is in `fedlap`, `fedlap.estimators` or `fedlap.study`, and stays there."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        for node in ast.walk(ast.parse(block)):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "fedlap":
                assert set(names) <= set(importlib.import_module(node.module).__all__), node.module
                assert node.module in ("fedlap", "fedlap.estimators", "fedlap.study")
            elif isinstance(node, ast.Import):
                assert not [name for name in names if name.startswith("fedlap.")]


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.name)
def test_lines_are_short(page):
    """Tables and code may be wider."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        code ^= line.startswith("```")
        if not code and not line.startswith(("|", "    ")):
            assert len(line) <= 120, f"{page.name}, line {number}"


def test_the_settings_file_in_the_usage_page_is_valid():
    import tomllib

    from fedlap.experiments import spec

    block = re.search(r"^```toml\n(.*?)^```", (ROOT / "docs/usage.md").read_text(), re.S | re.M).group(1)
    assert spec.resolve("credit", tomllib.loads(block)).train.seeds == (62, 63, 64)


def test_the_changelog_is_in_groups_below_versions_with_dates():
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *versions = re.split(r"^## ", text, flags=re.M)[1:]
    assert first.startswith("[Unreleased]\n")
    heads = [re.match(r"\[(.+)\] - (.+)\n", version).groups() for version in versions]
    dates = [datetime.date.fromisoformat(date) for _, date in heads]
    assert heads[0][0] == fedlap.__version__ and dates == sorted(dates, reverse=True)
    for part in (first, *versions):
        body, *groups = re.split(r"^### ", part, flags=re.M)
        names = [group.split("\n")[0] for group in groups]
        assert len(body.splitlines()) <= 2, "an entry outside of the groups"
        assert names == [name for name in ("Added", "Changed", "Fixed", "Removed") if name in names]


def test_the_citation_is_of_the_software_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    assert citation["title"].startswith("fedlap") and "version" not in citation
    (paper,) = citation["references"]
    assert paper["title"] == "Connecting Federated ADMM to Bayes" and paper["year"] == 2025
    assert [author["family-names"] for author in paper["authors"]] == ["Swaroop", "Khan", "Doshi-Velez"]
    assert "2501.17325" in paper["url"]


def test_the_page_on_the_reproduction_is_one_page():
    assert len(REPRODUCTION.read_text().split()) <= 1200


@pytest.mark.parametrize(
    "page", [REPRODUCTION, *NOTES, *sorted((ROOT / "docs/tables").glob("*.md"))], ids=lambda page: page.name
)
def test_no_line_of_the_reproduction_is_too_long_to_read(page):
    """But those of tables that are made from results, which are as wide as their columns."""
    lines = page.read_text().splitlines()
    long = [line for line in lines if len(line) >= 120 and (page == REPRODUCTION or not line.startswith("|"))]
    assert long == []


def test_numbers_of_results_stand_in_tables_that_are_made_from_them():
    """On the page of the reproduction; test_tables.py holds its tables to the results."""
    prose = "\n".join(line for line in REPRODUCTION.read_text().splitlines() if not line.startswith("|"))
    without_addresses = re.sub(r"\]\([^)]*\)", "]", prose)
    assert re.findall(r"\d+\.\d+|\d+/\d+|\d+ of \d+|\d+ points?", without_addresses) == []


def test_the_promises_of_the_security_page_have_their_tests():
    named = re.findall(r"`(test_\w+)::(\w+)`", (ROOT / "docs/security.md").read_text())
    assert len(named) > 60
    for file, name in named:
        assert f"\ndef test_{name}(" in (ROOT / "tests" / f"{file}.py").read_text(), f"{file}::{name}"
