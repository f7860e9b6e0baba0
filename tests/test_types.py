"""What a type checker says: of the package, of the examples in the documentation, and of mistakes it should find."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest

import fedlap
from fedlap.run.grid import Options

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```python" in path.read_text()
]

BEGIN = """
import fedlap
import fedlap.study

federation, model = fedlap.data.heart(), fedlap.logistic()
settings = [(fedlap.FedLap(delta=1.0), fedlap.adam(epochs=1))]
history = fedlap.simulate(fedlap.FedAvg(), federation, model, rounds=1)
"""
# A line each, and what the checker must say of it.
MISTAKES = {
    "fedlap.simulate(fedlap.FedLap(delta=1.0), federation, model, rounds=1, sovler=fedlap.adam())": '"sovler"',
    "fedlap.simulate(fedlap.FedLap(delta=1.0), federation, model)": '"rounds"',
    'fedlap.simulate(fedlap.FedLap(delta=1.0), federation, model, rounds=1, engine="vectorized")': "vectorized",
    "fedlap.simulate(fedlap.FedLap, federation, model, rounds=1)": '"algorithm"',
    "fedlap.simulate(fedlap.FedLap(delta=1.0), federation, model, rounds=1, solver=fedlap.descent())": '"solver"',
    'fedlap.simulate(fedlap.FedLap(delta=1.0), federation, "logistic", rounds=1)': '"model"',
    "fedlap.simulate_grid(settings, federation, model, rounds=1, seed=[0])": '"seed"',
    "fedlap.Simulation.of(fedlap.FedLap(delta=1.0), federation, model, round=1)": '"round"',
    "fedlap.FedLap(detla=1.0)": '"detla"',
    "fedlap.FedLap(1.0)": "positional",
    "fedlap.FedLapCov()": '"delta"',
    "fedlap.newton(step=3)": '"step"',
    "history.acuracy": '"acuracy"',
    "fedlap.FedLab": '"FedLab"',
    "fedlap.study.Sight": '"Sight"',
    'fedlap.study.check_file("study.toml", "va.csv")': '"study"',
    'fedlap.study.Coordinator.of(fedlap.study.Study.read("study.toml"), "127.0.0.1")': '"transport"',
}
RIGHT = {
    "fedlap.FedLap(delta=1.0, rho=fedlap.evenly)": "FedLap",
    "fedlap.FedLap(delta=1.0).delta": "float",
    "fedlap.adam(epochs=1, batch=8, learning_rate=1e-2)": "Adam",
    "fedlap.simulate(fedlap.FedLap(delta=1.0), federation, model, rounds=1, solver=fedlap.adam())": "History",
    'fedlap.simulate(fedlap.PVI(delta=1.0), federation, model, rounds=1, engine="loop").nll.shape': "tuple[Any, ...]",
    "fedlap.simulate_grid(settings, federation, model, rounds=1, seeds=[0])": "dict[tuple[int, int], History]",
    "fedlap.Simulation.of(fedlap.FedLap(delta=1.0), federation, model, seed=1).init().start": "Vector",
    "federation.hold_out(0.2, seed=0)": "Federation",
    "2.0 * history.fit.w + history.fit.w": "Vector",
    "fedlap.errors.ConfigError": "type[ConfigError]",
    'fedlap.study.check_file(fedlap.study.Study.read("study.toml"), "va.csv")': "Checked",
    'fedlap.study.load("model").pooled': "Pooled",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """All that the checker says, once for the package and for files made here, by file: [(line, severity, message)]."""
    checker = shutil.which("basedpyright", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if checker is None:
        pytest.skip("basedpyright is not installed; it comes with fedlap[dev]")
    folder = tmp_path_factory.mktemp("checked")
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
        (folder / f"page_{page.stem.replace('-', '_')}.py").write_text("\n".join(blocks))
    (folder / "mistakes.py").write_text(BEGIN + "\n".join(MISTAKES))
    (folder / "right.py").write_text(BEGIN + "\n".join(f"reveal_type({line})" for line in RIGHT))
    names = "\n".join(f"reveal_type(fedlap.{name})" for name in fedlap.__all__)
    (folder / "names.py").write_text(f"import fedlap\n{names}")
    absolute = {key: [str(ROOT / path) for path in SETTINGS[key]] for key in ("include", "extraPaths")}
    absolute["include"].append(str(folder))
    (folder / "pyrightconfig.json").write_text(json.dumps({**SETTINGS, **absolute}))
    command = [checker, "--project", folder, "--pythonpath", sys.executable, "--outputjson"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = json.loads(result.stdout)
    assert said["summary"]["filesAnalyzed"] > 80, result.stderr
    found = {path.name: [] for path in folder.glob("*.py")}
    for each in said["generalDiagnostics"]:
        path, line = Path(each["file"]), each["range"]["start"]["line"] + 1
        name = path.name if path.parent == folder else str(path.relative_to(ROOT))
        found.setdefault(name, []).append((line, each["severity"], each["message"]))
    return found


def errors(reports, name):
    return [(line, message) for line, severity, message in reports[name] if severity == "error"]


def test_the_package_has_no_error_of_type(reports):
    """Nor has the reproduction of the paper: all of them that pyproject.toml names."""
    ours = [name for name in reports if Path(name).parts[0] in SETTINGS["include"]]
    assert not {name: errors(reports, name) for name in ours if errors(reports, name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_have_no_error_of_type(reports, page):
    assert not errors(reports, f"page_{page.stem.replace('-', '_')}.py")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(reports, mistake):
    line = BEGIN.count("\n") + list(MISTAKES).index(mistake) + 1
    assert [
        message for place, message in errors(reports, "mistakes.py") if place == line and MISTAKES[mistake] in message
    ]


@pytest.mark.parametrize("expression", RIGHT)
def test_what_is_right_has_its_type(reports, expression):
    line = BEGIN.count("\n") + list(RIGHT).index(expression) + 1
    ((severity, message),) = [(severity, message) for place, severity, message in reports["right.py"] if place == line]
    assert severity == "information" and message.endswith(f'is "{RIGHT[expression]}"')


def test_every_public_name_has_a_type(reports):
    """Though the package imports it when it is first used."""
    seen = [message for _, severity, message in reports["names.py"] if severity == "information"]
    assert len(seen) == len(reports["names.py"]) == len(fedlap.__all__)
    unknown = [message.split('"')[1] for message in seen if "Unknown" in message]
    assert unknown == ["fedlap.Algorithm"]  # its four types are for an algorithm to say


def test_keywords_mean_the_same_wherever_they_stand():
    """`simulate` says what a keyword is; the others have some of them, with the same types and defaults."""
    simulate, grid, run = (
        inspect.signature(function).parameters
        for function in (fedlap.simulate, fedlap.simulate_grid, fedlap.Simulation.of)
    )
    loop = {"rounds", "checkpoint", "resume", "on_divergence", "on_round"}
    assert set(simulate) == {*run, *loop}
    assert [run[name] for name in run] == [simulate[name] for name in run]
    own = {"settings", "federations", "seeds", "watches"}
    assert set(grid) - set(simulate) == own
    assert [grid[name] for name in grid if name not in own] == [simulate[name] for name in grid if name not in own]
    shared = typing.get_type_hints(Options)
    assert set(shared) == set(grid) - own - {"model", "rounds", "on_divergence"}
    assert shared == {name: simulate[name].annotation for name in shared}


def public_functions(tree, inside=""):
    """The functions and methods that others may call, by name; not those inside of functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{inside}{node.name}", node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node, f"{node.name}.")


def unannotated(function, method):
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    named = [each for each in named if each is not None][1 if method else 0 :]
    return function.returns is None or any(each.annotation is None for each in named)


def test_public_functions_say_what_they_take_and_return():
    """Methods of an algorithm excepted: their types are those of the base class."""
    missing = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name, function in public_functions(ast.parse(path.read_text())):
            static = any(getattr(each, "id", None) == "staticmethod" for each in function.decorator_list)
            stated = path.parent.name == "algorithms" and hasattr(fedlap.Algorithm, function.name)
            if not stated and unannotated(function, "." in name and not static):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert not missing
