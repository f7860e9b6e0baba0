"""On an accelerator every program is its own: each is lowered for CUDA, ahead of time and without a device.

What must not be in them is a call back into Python, or a custom call that only a CPU has: LAPACK's, or a kernel of our
own. Regression over sites (`fedlap.glm`, `fedlap.cox`) is NumPy and has no programs.
"""

import dataclasses
import re
from functools import partial

import jax
import numpy as np
import pytest

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.data import Federation
from fedlap.engines import evaluate, sharded, streamed, vectorised
from fedlap.engines.parties import Moment
from fedlap.engines.round import initial
from fedlap.models.likelihood import Categorical
from fedlap.solvers import SOLVERS
from methods import NEEDED, build, simulation

OURS = r"cu[a-z]*_|__cu|Sharding$"  # CUDA's own libraries (cuSOLVER, cuBLAS, threefry's kernel), and no call at all
PATCHES = r"[<x]27x"  # 3 x 3 pixels of three channels, in rows or in columns


def lowered(function, *arguments, platform="cuda"):
    """The program of a function for that platform, as text, before its compiler sees it."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def of_round(run, platform="cuda"):
    """The program of a round of all clients and the server."""
    return lowered(
        vectorised.federated_round, run.setup, run.init(), vectorised.Moved.of(*run.plan(0)), platform=platform
    )


def of_block(run, engine, changes):
    """The programs of some clients of many and of the server that has their sums, in `streamed` or `sharded`.

    `changes` is what they do where others are away: exchange their terms in the sums.
    """
    run = dataclasses.replace(run, engine=engine)
    state, batches = run.init(), run.plan(0).batches
    places = np.arange(len(batches.steps), dtype=np.int32)
    scene = streamed.Scene(run.setup, state.server, Moment(state.round, state.start, run.setup.key), 1.0)
    work = streamed.Work(state.clients.at(places), places, np.ones(len(places), bool), batches.at(places))
    if isinstance(engine, sharded.Sharded):
        block = partial(sharded.of_block, engine.mesh, changes, engine.together)
        return [lowered(block, *engine.placed(scene, work))]
    block = partial(streamed.some_clients, changes, engine.together)
    _, parts = jax.eval_shape(block, scene, work)
    totals = jax.eval_shape(streamed._begin, parts)
    server = lambda setup, server, totals: streamed._server(setup, server, totals, 1.0)
    return [
        lowered(block, scene, work),
        lowered(streamed._add, totals, parts),
        lowered(server, run.setup, state.server, totals),
    ]


def foreign(program):
    """The names of what an accelerator does not have."""
    called = re.findall(r"custom_call @([^\s(]+)", program)
    return [name for name in called if "callback" in name or not re.match(OURS, name)]


def mlp():
    return fedlap.mlp(hidden=(5,))


def images(clients=2, rows=4):
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(clients * rows, 12, 12, 3)), np.arange(clients * rows) % 3
    parts = [(inputs[k::clients], labels[k::clients]) for k in range(clients)]
    return Federation.from_arrays(clients=parts, test=(inputs, labels))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_round_of_every_algorithm(name):
    assert not foreign(of_round(simulation(name)))


KINDS = ["fedavg", "scaffold", "fedlap_cov", "fedlap_func", "fedlap_kron"]  # one for each kind of sum


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("together", [True, False])
def test_a_block_of_many_clients(name, together):
    for program in of_block(simulation(name), streamed.Streamed(4, together), changes=together):
        assert not foreign(program)


@pytest.mark.parametrize("name", KINDS)
def test_a_block_of_clients_on_several_devices(name):
    for program in of_block(simulation(name), sharded.Sharded(4, True), changes=False):
        assert not foreign(program)


def test_a_kernel_of_our_own_in_a_block_is_noticed():
    for engine in (streamed.Streamed(4, True), sharded.Sharded(4, True)):
        program, *_ = of_block(simulation("fedlap_func", likelihood=ByKernel()), engine, changes=False)
        assert set(foreign(program)) == {"own_kernel"}


@pytest.mark.parametrize("name", ["fedavg", "pvi", "fedlap_cov_func"])
def test_a_network(name):
    """With gradients through layers, with noise on all weights, and with curvature and memory points."""
    assert not foreign(of_round(simulation(name, model=mlp())))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_round_with_every_solver(solver):
    name = "pvi" if solver == "ivon" else "fedlap"  # which has a Gaussian to fit
    assert not foreign(of_round(simulation(name, solver=SOLVERS[solver](**NEEDED.get(solver, {})))))


def test_a_full_covariance():
    program = of_round(simulation("fedlap_cov", hyper={"covariance": "full"}))
    assert "custom_call @cusolver" in program and not foreign(program)
    assert foreign(of_round(simulation("fedlap_cov", hyper={"covariance": "full"}), platform="cpu"))


def test_what_surrounds_a_round():
    run = simulation("fedlap_cov_func", model=mlp())
    task, w = run.setup.task, run.init().server.w
    assert not foreign(lowered(initial, run.setup))
    assert not foreign(lowered(lambda w, *test: evaluate.evaluate(task, w, *test), w, *run.test))
    assert not foreign(lowered(lambda w, inputs: evaluate.predict(task, w, inputs), w, run.test[0]))


def test_convolutions_are_the_librarys():
    """Both ways: forwards, and backwards to the weights and to the inputs of every layer but the first."""
    solver = fedlap.adam(epochs=1, batch=2)
    run = fedlap.Simulation.of(build("fedlap"), images(), fedlap.zenke_cnn(), solver=solver, engine="vectorised")
    program = of_round(run)
    assert not foreign(program) and not re.search(PATCHES, program)
    assert program.count("stablehlo.convolution") >= 4 + 4 + 3


def test_only_a_cpu_convolves_by_matrix_products():
    """Or the test above would look for what nobody does."""
    convolve = lambda weight, images: fedlap.models.convolution.convolve(images, weight).sum()
    arguments = np.ones((3, 3, 3, 4), np.float32), np.ones((2, 12, 12, 3), np.float32)
    on_cpu, on_cuda = (lowered(jax.grad(convolve), *arguments, platform=platform) for platform in ("cpu", "cuda"))
    assert re.search(PATCHES, on_cpu) and "stablehlo.convolution" not in on_cpu
    assert not re.search(PATCHES, on_cuda) and "stablehlo.convolution" in on_cuda


def test_clients_are_not_given_to_threads(monkeypatch):
    """However large the model: an accelerator takes all of them as one program."""
    large = fedlap.mlp(hidden=(8_000,))
    assert simulation("fedlap", model=large, engine="auto").engine is not vectorised
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert simulation("fedlap", model=large, engine="auto").engine is vectorised


@dataclasses.dataclass(frozen=True)
class InPython(Categorical):
    """A loss that leaves the device."""

    def probabilities(self, outputs):
        shape = jax.ShapeDtypeStruct(outputs.shape, outputs.dtype)
        return jax.pure_callback(
            lambda outputs: outputs, shape, super().probabilities(outputs), vmap_method="broadcast_all"
        )


@dataclasses.dataclass(frozen=True)
class ByKernel(Categorical):
    """A loss with a kernel that somebody wrote for a CPU."""

    def probabilities(self, outputs):
        shape = jax.ShapeDtypeStruct(outputs.shape, outputs.dtype)
        return jax.ffi.ffi_call("own_kernel", shape, vmap_method="broadcast_all")(super().probabilities(outputs))


def test_a_kernel_of_our_own_is_noticed():
    assert set(foreign(of_round(simulation("fedlap_func", likelihood=ByKernel())))) == {"own_kernel"}


def test_a_call_of_python_is_noticed():
    """Without a device there is nobody to call back: to lower it fails."""
    run = simulation("fedlap_func", likelihood=InPython())
    with pytest.raises(ValueError, match="different from the lowering platform cuda"):
        of_round(run)
