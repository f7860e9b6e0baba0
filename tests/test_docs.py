"""The documentation runs: every Python block of a page, in order, in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "example"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_settings_file_in_the_usage_page_is_valid():
    import tomllib

    from fedlap import spec

    block = re.search(r"^```toml\n(.*?)^```", (ROOT / "docs/usage.md").read_text(), re.S | re.M).group(1)
    assert spec.resolve("credit", tomllib.loads(block)).train.seeds == (62, 63, 64)
