"""How all tests run: in float64, with a cache of compiled programs of their own, and the same examples each time.

They are compiled as runs of few rounds are (`engines/brief.py`), for most of the tests' time is compilation. With the
compiler as longer runs have it: XLA_FLAGS= python3 start.py test
"""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_enable_x64", True)

# Tests neither read nor fill the user's cache of compiled programs. The first process makes one, which its workers and
# the processes that tests start inherit.
FIRST = "FEDLAP_TEST_PROGRAMS" not in os.environ
if FIRST:
    os.environ["FEDLAP_TEST_PROGRAMS"] = tempfile.mkdtemp(prefix="fedlap-tests-")
    # A compiler that does not know a flag ends its process, so another one tries them first.
    brief = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"}
    tried = [sys.executable, "-c", "import jax; jax.devices()"]
    if "XLA_FLAGS" not in os.environ and subprocess.run(tried, env=brief, capture_output=True).returncode == 0:
        os.environ["XLA_FLAGS"] = brief["XLA_FLAGS"]
for option, value in {
    "jax_compilation_cache_dir": os.environ["FEDLAP_TEST_PROGRAMS"],
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(option, value)
    os.environ[option.upper()] = str(value)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test marked `usual_compiler` in a process of its own that has it: where the last bits decide."""
    if pyfuncitem.get_closest_marker("usual_compiler") is None or not os.environ.get("XLA_FLAGS"):
        return None
    command = [sys.executable, "-m", "pytest", "-n", "0", "--no-cov", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, env={**os.environ, "XLA_FLAGS": ""}, text=True)
    assert done.returncode == 0
    return True


# Derandomised: the same examples in every run, so that green stays green. Other examples: HYPOTHESIS_PROFILE=explore.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("fedlap", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("explore", max_examples=50, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fedlap"))


# Each compiled program is some mappings of memory, of which a process may have 65,530 on Linux; beyond them XLA dies.
MOST_MAPPINGS = 20_000


def pytest_runtest_teardown(item, nextitem):
    """Between two files, forget the programs if there are very many; what is needed again is in the cache on disk."""
    if nextitem is not None and nextitem.path != item.path and mappings() > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def mappings():
    """How many mappings of memory this process has; 0 where the system does not tell."""
    path = Path("/proc/self/maps")
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def pytest_unconfigure():
    if FIRST:
        shutil.rmtree(os.environ.pop("FEDLAP_TEST_PROGRAMS"), ignore_errors=True)
