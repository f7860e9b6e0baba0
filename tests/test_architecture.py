"""The shape of the package: who may import whom, and what an algorithm file may contain."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedlap
from fedlap.algorithms import ALGORITHMS

PACKAGE = Path(fedlap.__file__).parent


def imported(path):
    """Modules a file imports when it is imported, those of the package as dotted names below it."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("fedlap.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            module = ".".join((*base, node.module)).removeprefix("fedlap.") if node.module else ".".join(base)
            names |= {module} if node.module else {".".join((*base, alias.name)) for alias in node.names}
    return names


@pytest.mark.parametrize("path", [*sorted((PACKAGE / "algorithms").glob("fed*.py")), PACKAGE / "algorithms/pvi.py"])
def test_an_algorithm_imports_no_framework(path):
    allowed = {"algorithm", "damping", "gaussian", "hyperparameters", "memory", "quadratic", "vector", "typing"}
    assert imported(path) <= allowed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_one_file_and_shows_its_equations(name):
    path = PACKAGE / "algorithms" / f"{name}.py"
    assert ALGORITHMS[name].__module__ == f"fedlap.algorithms.{name}"
    assert "←" in ALGORITHMS[name].__doc__
    assert len(path.read_text().splitlines()) <= 80


def test_layers_point_downwards():
    """Mathematics knows nothing of engines, engines nothing of experiments, nothing below knows the command line."""
    above = {
        "algorithms": {"engines", "parties", "simulation", "experiment", "cli"},
        "solvers": {"engines", "simulation", "experiment", "cli"},
        "data": {"engines", "simulation", "experiment", "cli", "jax"},
        "engines": {"simulation", "experiment", "spec", "cli", "report"},
        "study": {"flower", "flwr", "simulation", "experiment", "cli", "study_cli", "network_cli"},
    }
    for folder, forbidden in above.items():
        for path in (PACKAGE / folder).rglob("*.py"):
            roots = {name.split(".")[0] for name in imported(path)}
            assert not roots & forbidden, path
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("cli.py", "__main__.py"):
            assert "cli" not in imported(path), path


def test_only_the_flower_folder_imports_flower():
    for path in PACKAGE.rglob("*.py"):
        if "flower" not in path.relative_to(PACKAGE).parts:
            assert "flwr" not in {name.split(".")[0] for name in imported(path)}, path


def test_importing_fedlap_brings_nothing_that_is_optional():
    unwanted = ("flwr", "matplotlib", "torch", "ray", "sklearn", "cryptography", "safetensors", "pyarrow", "flax")
    code = f"import sys, fedlap, fedlap.cli; print([m for m in {unwanted} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def in_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_fedlap_waits_for_nothing():
    """Not even for NumPy; the errors and the data sets come without JAX."""
    assert in_python("import sys, fedlap; print([m for m in ('jax', 'numpy') if m in sys.modules])").strip() == "[]"
    code = "import sys, fedlap; fedlap.data.heart, fedlap.errors.ConfigError; print('jax' in sys.modules)"
    assert in_python(code).strip() == "False"


def test_all_public_names_are_found_as_if_they_had_been_imported():
    code = """
from fedlap import *
import fedlap
assert set(fedlap.__all__) <= set(dir(fedlap)) and FedLap is fedlap.FedLap is fedlap.algorithms.FedLap
print(fedlap.data.heart.__name__, fedlap.models.mlp is mlp, fedlap.FedLap.__module__)
try:
    fedlap.FedLab
except AttributeError as error:
    print(error)
"""
    printed = ["heart True fedlap.algorithms.fedlap", "module 'fedlap' has no attribute 'FedLab'"]
    assert in_python(code).splitlines() == printed


def test_editors_see_the_names_that_are_imported_when_used():
    (block,) = (node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == {**fedlap._HOME, "data": None} and sorted(seen) == sorted(fedlap.__all__)


def test_every_public_name_exists_and_is_documented():
    for name in fedlap.__all__:
        thing = getattr(fedlap, name)
        assert thing.__doc__, name


def test_the_core_takes_few_arguments():
    """What belongs together goes together: a setup, a plan, a moment. Long lists of arguments are soon mixed up."""
    for path in [*sorted((PACKAGE / "engines").glob("*.py")), PACKAGE / "parties.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.Lambda)):
                count = len(node.args.posonlyargs) + len(node.args.args)
                assert count <= 6, f"{path.name}, line {node.lineno}: {count} arguments"


def test_modules_stay_small():
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 280}
    assert not long


def test_files_of_tests_stay_small():
    long = {p.name: n for p in Path(__file__).parent.glob("*.py") if (n := len(p.read_text().splitlines())) > 500}
    assert not long
