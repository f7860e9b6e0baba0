"""The public names of studies: all of them there, documented, imported when used, and enough for the guide."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedlap.study
from fedlap.lazy import home_of_each

GUIDE = Path(__file__).parent.parent / "docs" / "real-federations.md"


@pytest.mark.parametrize("name", fedlap.study.__all__)
def test_every_public_name_is_documented(name):
    thing = getattr(fedlap.study, name)
    assert thing.__module__.startswith("fedlap.study.")
    assert thing.__doc__ and not thing.__doc__.startswith(f"{name}("), "Python writes a docstring where there is none"


def test_editors_see_the_names_that_are_imported_when_used():
    body = ast.parse(Path(fedlap.study.__file__).read_text()).body
    block = next(node for node in body if isinstance(node, ast.If))
    seen = {alias.name: node.module.removeprefix("fedlap.study.") for node in block.body for alias in node.names}
    assert seen == home_of_each(fedlap.study._HOMES) and sorted(seen) == fedlap.study.__all__


def test_importing_studies_waits_for_nothing_and_checking_a_file_not_for_jax():
    code = """
import sys, fedlap.study
assert set(fedlap.study.__all__) <= set(dir(fedlap.study))
print([name for name in ("jax", "numpy") if name in sys.modules])
fedlap.study.check_file, fedlap.study.statistics
print("jax" in sys.modules)
try:
    fedlap.study.Sight
except AttributeError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines() == ["[]", "False", "module 'fedlap.study' has no attribute 'Sight'"]


def test_the_guide_imports_public_names_only():
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    imports = {(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert ("fedlap.study", "Coordinator") in imports and ("fedlap.study", "load") in imports
    assert {name for module, name in imports if module == "fedlap.study"} <= set(fedlap.study.__all__)
    assert {module for module, _ in imports if module.startswith("fedlap")} == {"fedlap.study"}
