"""What is given away: the sdist, the wheel made from it, and that the wheel alone runs."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import fedlap

ROOT = Path(__file__).parent.parent


def python(*words, cwd, **variables):
    """The output of a Python program, whose errors are shown if it fails."""
    result = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(target, source, folder):
    python("-m", "hatchling", "build", "--target", target, "--directory", folder, cwd=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The sdist, unpacked."""
    built = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    with tarfile.open(built) as archive:
        archive.extractall(folder := tmp_path_factory.mktemp("source"), filter="data")
    return folder / built.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


def files(folder):
    """All files below a folder but what running them leaves behind."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


@pytest.mark.parametrize("folder", ["src", "tests", "docs", "benchmarks", "tools"])
def test_the_sdist_has_all_of_a_folder(source, folder):
    assert files(source / folder) == files(ROOT / folder)


def test_the_sdist_has_the_words_and_neither_results_nor_caches(source):
    top = {path.name for path in source.iterdir()}
    words = {"LICENSE", "start.py", *(path.name for path in ROOT.glob("*.md")), "CITATION.cff"}
    folders = {"src", "tests", "docs", "reproduction", "benchmarks", "tools"}
    assert top == {*words, *folders, "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert (source / "reproduction/specs/flamby.toml").exists() and (source / "reproduction/published.toml").exists()
    assert files(source / "reproduction/notes") == files(ROOT / "reproduction/notes")
    assert not [path for path in source.rglob("*") if path.name in ("results", "__pycache__", ".pytest_cache")]


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if ".dist-info/" not in name}
    assert package == {f"fedlap/{name}" for name in files(ROOT / "src/fedlap")}
    beside = {"experiments/specs/heart.toml", "data/bundled/crx.data", "data/bundled/ATTRIBUTION.md"}
    assert {f"fedlap/{name}" for name in beside} <= package
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert not [name for name in names if "paper" in name or "reproduction" in name]


def test_the_version_has_one_source(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert message_from_bytes(archive.read(metadata))["Version"] == fedlap.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"] and "version" not in project


@pytest.fixture(scope="module")
def packages(wheel, tmp_path_factory):
    """A folder in which the wheel is installed, beside the libraries of this environment."""
    folder = tmp_path_factory.mktemp("packages")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    python(*pip, "--target", folder, wheel, cwd=folder)
    return folder


def test_an_installed_wheel_runs(packages, tmp_path):
    """With the specs and the data that it has in it."""
    path = {"PYTHONPATH": str(packages)}
    place = python("-c", "import fedlap; print(fedlap.__file__)", cwd=tmp_path, **path).strip()
    assert Path(place) == packages / "fedlap/__init__.py"
    settings = ("--set", "rounds=1", "--set", "seeds=[0]", "--output", "out")
    assert "fedavg" in python("-m", "fedlap", "run", "fedavg", *settings, cwd=tmp_path, **path)
    assert "fedavg" in (tmp_path / "out/table.md").read_text()


@pytest.mark.parametrize("command", ["table", "figure", "reproduce"])
def test_what_left_the_package_says_where_it_is(packages, command, tmp_path):
    """In one line, whatever follows the command."""
    words = [sys.executable, "-m", "fedlap", command, "1", "--output", "somewhere", "--quick"]
    path = {**os.environ, "PYTHONPATH": str(packages)}
    result = subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert result.returncode == 2 and result.stdout == "" and not list(tmp_path.iterdir())
    (line,) = result.stderr.splitlines()
    assert "a clone of the repository" in line and "python -m reproduction " in line
