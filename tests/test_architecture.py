"""The shape of the package: who may import whom, and what an algorithm file may contain."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.lazy import home_of_each

PACKAGE = Path(fedlap.__file__).parent
ROOT = Path(__file__).parent.parent


# Who may import whom. A room not named here, or an edge not written down, fails the test: the plan is changed first.
ROOMS = {
    "arrays": "",
    "errors": "",
    "identity": "",
    "lazy": "",
    "memory": "",
    "checks": "errors",
    "registry": "errors",
    "sheets": "errors",
    "domains": "errors checks",
    "streams": "errors checks",
    "stopping": "errors",
    "documents": "errors",
    "files": "errors documents",
    "machine": "files stopping",
    "algebra": "arrays errors checks domains",
    "algorithms": "registry algebra",
    "solvers": "arrays errors checks registry domains algebra algorithms",
    "data": "errors checks registry sheets domains files",
    "regression": "errors checks files data",
    "models": "arrays errors checks registry domains algebra data",
    "engines": "arrays errors checks streams files machine algebra algorithms solvers models",
    "settings": "errors documents identity registry domains algebra algorithms solvers models",
    "run": "arrays errors identity checks domains streams files machine algebra algorithms solvers data models engines",
    "hooks": "errors files engines run",
    "estimators": "errors checks domains arrays machine algorithms solvers data regression models engines run",
    "experiments": "errors documents identity checks domains streams stopping files machine algorithms "
    "solvers data models engines settings run",
    "study.table": "errors checks sheets domains streams files data",
    "study.agreement": "errors documents identity checks sheets domains streams files algorithms data "
    "settings regression study.table",
    "study.protocol": "errors files algebra models engines regression study.table",
    "study": "errors identity lazy checks sheets files algebra models engines regression study.table "
    "study.agreement study.protocol",
    "flower": "errors files study.agreement study.protocol",
    "cli": "errors documents memory stopping files machine algebra algorithms data regression run "
    "experiments study study.table study.agreement study.protocol flower",
}


def dotted(path):
    """A file of the package by its name below it; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def room(module):
    """The folder a module stands in, of a study's three rooms the second one; a module without one is its own."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "study" and len(parts) > 2 else parts[0]


def imported(path):
    """All that a file imports, at its top or inside a function: modules of the package as names below it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written from fedlap on"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name.removeprefix("fedlap.") in MODULES else node.module for name in inner}
    return {name.removeprefix("fedlap.") for name in names}


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ("", "__main__")])
def test_a_module_imports_what_stands_below_it(module):
    """Lazy imports too: a function that brings in the command line knows of it as much as a module does."""
    own = room(module)
    assert own in ROOMS, f"{module}: a room that the plan does not have"
    rooms = {room(name) for name in imported(MODULES[module]) if name in MODULES}
    assert rooms <= {own, *ROOMS[own].split()}, module


def test_every_module_is_on_the_map():
    """The README names each by its file, in the line of its room."""
    lines = re.findall(r"^\| (`.*`) \| (.*) \|$", (ROOT / "README.md").read_text(), re.M)
    named = {}
    for rooms, modules in lines:
        for name in re.findall(r"`([a-z_]+)/?`", rooms):
            named[name] = set(re.findall(r"`([a-z_]+)`", f"{rooms} {modules}"))
    missing = [name for name in MODULES if name not in ("", "__main__") and name not in PACKAGES]
    missing = [name for name in missing if name.split(".")[-1] not in named.get(name.split(".")[0], ())]
    assert not missing


def test_the_plan_has_no_circle():
    """Every room stands on rooms written above it."""
    names = list(ROOMS)
    for place, (name, below) in enumerate(ROOMS.items()):
        assert set(below.split()) <= set(names[:place]), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_imports_no_framework(name):
    imports = imported(PACKAGE / "algorithms" / f"{name}.py")
    assert {each.split(".")[0] for each in imports} <= {"algorithms", "algebra", "typing"}
    assert {each for each in imports if each.startswith("algorithms")} == {"algorithms.base"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_one_file_and_shows_its_equations(name):
    assert ALGORITHMS[name].__module__ == f"fedlap.algorithms.{name}"
    assert "←" in ALGORITHMS[name].__doc__
    assert len(inspect.getsource(ALGORITHMS[name]).splitlines()) <= 80


def test_only_the_flower_folder_imports_flower():
    for path in PACKAGE.rglob("*.py"):
        if "flower" not in path.relative_to(PACKAGE).parts:
            assert "flwr" not in {name.split(".")[0] for name in imported(path)}, path


def test_importing_fedlap_brings_nothing_that_is_optional():
    unwanted = ("flwr", "matplotlib", "torch", "ray", "sklearn", "cryptography", "safetensors", "pyarrow", "flax")
    unwanted += ("submitit", "tensorboardX", "mlflow")
    code = f"import sys, fedlap, fedlap.cli.main; print([m for m in {unwanted} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def in_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_fedlap_waits_for_nothing():
    """Not even for NumPy; the errors and the data sets come without JAX."""
    assert in_python("import sys, fedlap; print([m for m in ('jax', 'numpy') if m in sys.modules])").strip() == "[]"
    code = "import sys, fedlap; fedlap.data.heart, fedlap.errors.ConfigError; print('jax' in sys.modules)"
    assert in_python(code).strip() == "False"


def test_training_waits_for_no_library_that_only_others_use():
    """SciPy is for posteriors and for regression, Pallas comes with what checks an algorithm's terms."""
    unused = ("scipy.linalg", "scipy.special", "scipy.stats", "jax.extend", "matplotlib.pyplot")
    code = "import sys, fedlap.cli.display, fedlap.experiments.runner"
    assert in_python(f"{code}; print([m for m in {unused} if m in sys.modules])").strip() == "[]"


def test_all_public_names_are_found_as_if_they_had_been_imported():
    code = """
import fedlap
assert set(fedlap.__all__) <= set(dir(fedlap))
from fedlap import *
assert FedLap is fedlap.FedLap is fedlap.algorithms.FedLap
print(fedlap.data.heart.__name__, fedlap.models.mlp is mlp, fedlap.FedLap.__module__)
try:
    fedlap.FedLab
except AttributeError as error:
    print(error)
"""
    printed = ["heart True fedlap.algorithms.fedlap", "module 'fedlap' has no attribute 'FedLab'"]
    assert in_python(code).splitlines() == printed


def test_editors_see_the_names_that_are_imported_when_used():
    block = next(node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: node.module.removeprefix("fedlap").lstrip(".") for node in block.body for alias in node.names}
    modules = {name for name, home in seen.items() if not home}
    assert modules == {home for home in fedlap._HOMES if "." not in home}
    assert {name: home for name, home in seen.items() if home} == home_of_each(fedlap._HOMES)
    assert sorted([*home_of_each(fedlap._HOMES), "data"]) == sorted(fedlap.__all__)


def written(thing):
    """The docstring that stands in the source: Python writes one of its own for dataclasses and named tuples."""
    if isinstance(thing, ModuleType):
        return thing.__doc__
    source = type(thing) if not isinstance(thing, (type, FunctionType)) else thing
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(source)))).body
    return ast.get_docstring(node)


@pytest.mark.parametrize("name", fedlap.__all__)
def test_every_public_name_is_documented(name):
    assert written(getattr(fedlap, name)), name


def test_a_docstring_that_python_wrote_is_none():
    @dataclass
    class Bare:
        number: int

    assert Bare.__doc__ and not written(Bare)


def test_the_core_takes_few_arguments():
    """What belongs together goes together: a setup, a plan, a moment. Long lists of arguments are soon mixed up."""
    for path in sorted((PACKAGE / "engines").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.Lambda)):
                count = len(node.args.posonlyargs) + len(node.args.args)
                assert count <= 6, f"{path.name}, line {node.lineno}: {count} arguments"


def test_modules_stay_small():
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 420}
    assert not long


def test_files_of_tests_stay_small():
    long = {p.name: n for p in Path(__file__).parent.glob("*.py") if (n := len(p.read_text().splitlines())) > 500}
    assert not long


def test_the_library_calls_no_git():
    """A package is no clone: whoever keeps results in one names the commit himself."""
    for name, path in MODULES.items():
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not [text for text in texts if isinstance(text, str) and re.match(r"(\S*/)?\.?git(\s|$)", text)], name


def test_no_two_classes_have_one_name():
    """A name says which class is meant, in the package and beside it."""
    repository = Path(__file__).parent.parent
    places = {}
    for path in (*MODULES.values(), *sorted((repository / "reproduction").rglob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(repository)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_what_tests_share_is_in_modules_of_its_own():
    """A test module or conftest that others import is run twice, and hides what depends on what."""
    for path in Path(__file__).parent.glob("*.py"):
        names = [name for name in imported(path) if name.startswith("test_") or name == "conftest"]
        assert not names, f"{path.name} imports {names}"
