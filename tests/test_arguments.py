"""An argument that cannot be right is refused by name, where it is given and before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from drawn import FOUR, federation
from fedlap.errors import ConfigError

DRAWN = federation(4, FOUR, overlap=True)
LAP, MODEL = fedlap.FedLap(delta=1.0), fedlap.logistic()
SETTINGS = [(LAP, fedlap.newton())]


def simulate(federation=DRAWN, **options):
    return fedlap.simulate(LAP, federation, MODEL, **{"rounds": 1} | options)


def grid(settings=SETTINGS, **options):
    return fedlap.simulate_grid(settings, DRAWN, MODEL, **{"rounds": 1, "seeds": [0]} | options)


WHOLE = "expected a whole number from 0 to 4294967295"
LIST = "expected a list of whole numbers from 0 to 4294967295"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate([([[0.0]], [0])]), r"^federation is of type list; expected for example Federation\.from_arr"),
        (
            lambda: fedlap.mlp(hidden=200),
            r"^mlp: hidden is 200; expected whole numbers above 0, for example \(200, 100\)",
        ),
        (lambda: fedlap.mlp(hidden=(0,)), r"^mlp: hidden is \(0,\); expected whole numbers above 0"),
        (lambda: fedlap.mlp(hidden=(20.5,)), r"^mlp: hidden is \(20\.5,\)"),
        (lambda: fedlap.mlp(hidden="20"), r"^mlp: hidden is '20'"),
        (lambda: simulate(seed="a"), rf"^seed is 'a'; {WHOLE}"),
        (lambda: simulate(seed=10**30), rf"^seed is 10+; {WHOLE}"),
        (lambda: simulate(seed=-1), rf"^seed is -1; {WHOLE}"),
        (lambda: simulate(seed=True), rf"^seed is True; {WHOLE}"),
        (lambda: simulate(seed=1.0), rf"^seed is 1\.0; {WHOLE}"),
        (lambda: grid(seeds=3), rf"^seeds is 3; {LIST}"),
        (lambda: grid(seeds=[]), rf"^seeds is \[\]; {LIST}"),
        (lambda: grid(seeds=[0, 10**30]), rf"^seeds is \[0, 10+\]; {LIST}"),
        (lambda: grid(seeds="01"), rf"^seeds is '01'; {LIST}"),
        (lambda: grid(seeds=[1, 1]), r"^seeds is \[1, 1\]; each seed may stand there once"),
        (lambda: grid([]), r"^settings is \[\]; expected a list of pairs \(algorithm, solver\), at least one"),
        (lambda: grid(LAP), r"^settings is FedLap\(.*; expected a list of pairs"),
        (lambda: grid([LAP]), r"^settings\[0\] is FedLap\(.*; expected a pair \(algorithm, solver\)"),
        (lambda: grid(watches=[{}, {}]), r"^2 watches for 1 seeds; expected one each"),
        (lambda: simulate(solvr=1), r"^unknown argument of simulate 'solvr'; did you mean 'solver'\?"),
        (
            lambda: grid(particpation=1),
            r"^unknown argument of simulate_grid 'particpation'; did you mean 'participation'",
        ),
        (lambda: grid(engine="loop"), r"^unknown argument of simulate_grid 'engine'"),
        (
            lambda: fedlap.Simulation.of(LAP, DRAWN, MODEL, sead=1),
            r"^unknown argument of Simulation\.of 'sead'; did you mean 'seed'\?",
        ),
        (
            lambda: fedlap.FedLap(dleta=1),
            r"^unknown argument of FedLap 'dleta'; did you mean 'delta'\? \(choices: delta, rho",
        ),
        (lambda: fedlap.adam(rate=1), r"^unknown argument of Adam 'rate'"),
        (lambda: fedlap.FedLap(delta=-1), r"^FedLap: delta is -1; expected a number above 0"),
        (lambda: fedlap.FedLap(delta=jnp.float32(0)), r"^FedLap: delta is .*0.*; expected a number above 0"),
        (
            lambda: fedlap.FedLap(delta=np.ones(2)),
            r"^FedLap: delta is array\(\[1\., 1\.\]\); expected a number above 0",
        ),
        (lambda: fedlap.FedLap(delta=1, rho=1.5), r"^FedLap: rho is 1\.5; expected a number in \(0, 1\]"),
        (lambda: fedlap.adam(epochs=0), r"^Adam: epochs is 0; expected a whole number above 0"),
        (lambda: fedlap.newton(steps=1.5), r"^Newton: steps is 1\.5; expected a whole number above 0"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_nothing_of_the_data_is_in_the_message():
    with pytest.raises(ConfigError) as caught:
        simulate([([[61.0, 1.0]], [1])])
    assert "61" not in str(caught.value)


def test_numbers_of_numpy_and_ranges_are_seeds():
    assert fedlap.Simulation.of(LAP, DRAWN, MODEL, seed=np.int64(3)).describe()["seed"] == "3"
    assert fedlap.Simulation.of(LAP, DRAWN, MODEL, seed=2**32 - 1).seed == 2**32 - 1
    settings = ((LAP, fedlap.newton()) for _ in range(1))  # may be read once only
    assert set(grid(settings, seeds=np.arange(2))) == {(0, 0), (0, 1)} == set(grid(seeds=range(2)))


def test_hyper_parameters_may_be_traced_and_scalars_of_any_library():
    """In a compiled program a number is not known yet; rebuilt from its leaves, an algorithm is not checked again."""
    doubled = jax.jit(lambda delta: jax.tree.leaves(fedlap.FedLap(delta=2 * delta, rho=delta)))(0.5)
    assert [float(leaf) for leaf in doubled] == [1.0, 0.5]
    for scalar in (np.float32(0.5), jnp.asarray(0.5), np.asarray(0.5), 1):
        assert fedlap.FedLap(delta=scalar).delta == scalar
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), fedlap.FedLap(delta=0.5, rho=0.5))
    assert batch.delta.shape == (2,)


def test_the_signature_is_still_there():
    """Settings files and help are read from it."""
    from fedlap.settings import keys

    assert keys(fedlap.FedLapCov) == ["delta", "rho", "covariance"]
    assert {"solver", "seed", "on_divergence"} <= set(keys(fedlap.simulate))
