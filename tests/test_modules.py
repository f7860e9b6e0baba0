"""Flax modules: told whether they train, in whatever way they ask for it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedlap
from closeness import same_bits
from drawn import federation
from fedlap.errors import ConfigError
from fedlap.models.curvature import Examples, GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.model import as_model

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(1), (5, 2))
WIDTH, CLASSES = 8, 3
ADAM = fedlap.adam(epochs=1, batch=6)


class Plain(nn.Module):
    """What all of those below are without dropout."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES, name="outer")(nn.Dense(WIDTH, name="inner")(x))


class Positional(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not train)(nn.Dense(WIDTH, name="inner")(x))
        return nn.Dense(CLASSES, name="outer")(x)


class Keyword(nn.Module):
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, *, deterministic=True):
        x = nn.Dropout(self.rate)(nn.Dense(WIDTH, name="inner")(x), deterministic=deterministic)
        return nn.Dense(CLASSES, name="outer")(x)


class Attribute(nn.Module):
    is_training: bool = False

    def setup(self):
        self.inner, self.outer = nn.Dense(WIDTH), nn.Dense(CLASSES)
        self.dropout = nn.Dropout(0.5, deterministic=not self.is_training)

    def __call__(self, x):
        return self.outer(self.dropout(self.inner(x)))


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, inference: bool = True):
        x = nn.Dense(WIDTH, name="inner")(x)
        x = x if inference else x + jax.random.normal(self.make_rng("noise"), x.shape)
        return nn.Dense(CLASSES, name="outer")(x)


class Silent(nn.Module):
    """No flag of its own: its layer has one."""

    deterministic_layer: bool | None = None

    @nn.compact
    def __call__(self, x):
        x = nn.Dropout(0.5, deterministic=self.deterministic_layer)(nn.Dense(WIDTH, name="inner")(x))
        return nn.Dense(CLASSES, name="outer")(x)


def sequential(layer):
    return nn.Sequential([nn.Dense(WIDTH), layer, nn.Dense(CLASSES)])


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dropout(0.5)(x, deterministic=not training)


LINEN = {
    "train, positional": Positional(),
    "deterministic, by keyword": Keyword(),
    "is_training, an attribute": Attribute(),
    "inference, with a stream of its own": Noisy(),
    "a layer without a flag": Silent(),
    "a layer that is always on": Silent(deterministic_layer=False),
    "a layer that is always off": Silent(deterministic_layer=True),
    "a list": sequential(nn.Dropout(0.5, deterministic=False)),
    "a list with a block": sequential(Block()),
}


@pytest.mark.parametrize("name", LINEN)
def test_a_linen_module_draws_in_training_and_nowhere_else(name):
    model, plain = as_model(LINEN[name]), Plain()
    params = model.init(KEY, INPUTS, CLASSES)
    same = jax.tree.unflatten(jax.tree.structure(plain.init(KEY, INPUTS)), jax.tree.leaves(params))
    wanted = plain.apply(same, INPUTS)
    np.testing.assert_array_equal(model.apply(params, INPUTS), wanted)
    first, again, other = (model.train(params, INPUTS, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (first != wanted).any() and (other != wanted).any()


def test_curvature_is_that_of_the_module_without_dropout():
    rows, weights = jnp.arange(len(INPUTS)), jnp.ones(len(INPUTS))
    params = jax.tree.map(jnp.float64, Plain().init(KEY, INPUTS))

    def curvature(module):
        arguments = (as_model(module), categorical, params, Examples(INPUTS, None, rows, weights, len(rows), KEY))
        return GaussNewton().diagonal(*arguments), GaussNewton().full(*arguments)

    assert same_bits(curvature(Positional()), curvature(Plain()))


def test_dropout_changes_what_is_learnt():
    """With nearly all inputs of the last layer dropped its weights cannot move as they would."""
    learnt = [
        fedlap.simulate(fedlap.FedAvg(), federation(), Keyword(rate), solver=ADAM, rounds=1).final.w
        for rate in (0.0, 0.99)
    ]
    assert np.abs(learnt[0] - learnt[1]).max() > 1e-4


def test_equal_modules_are_found_again_and_the_users_stay_as_they_are():
    module = sequential(nn.Dropout(0.5, deterministic=False))
    model = as_model(module)
    params = model.init(KEY, INPUTS, CLASSES)
    model.apply(params, INPUTS)
    assert module.layers[1].deterministic is False and as_model(module) == model
    assert as_model(Keyword()) == as_model(Keyword()) != as_model(Keyword(rate=0.25))


class Mode(nn.Module):
    @nn.compact
    def __call__(self, x, mode):
        return x


class Stubborn(nn.Module):
    """Off in training too, as nobody can tell it otherwise."""

    @nn.compact
    def __call__(self, x, learning=False):
        return nn.Dense(CLASSES)(nn.Dropout(0.5)(x, deterministic=not learning))


class Restless(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(x) + jax.random.normal(self.make_rng("noise"), (len(x), CLASSES))


def test_what_cannot_be_told_is_refused():
    with pytest.raises(ConfigError, match=r"Mode is called with 'mode'; expected inputs and.* \(train, training"):
        as_model(Mode()).init(KEY, INPUTS, CLASSES)
    model = as_model(Stubborn())
    with pytest.raises(ConfigError, match="Dropout is called with deterministic=True in training and in evaluation"):
        model.train(model.init(KEY, INPUTS, CLASSES), INPUTS, KEY)
    model = as_model(Restless())
    with pytest.raises(ConfigError, match="Restless draws random numbers in evaluation; expected a flag"):
        model.apply(model.init(KEY, INPUTS, CLASSES), INPUTS)
    for module in (Plain, New):
        with pytest.raises(ConfigError, match=rf"model is the class {module.__name__}; expected an instance"):
            as_model(module)


class New(nnx.Module):
    def __init__(self, seed=0, rate=0.5, **layer):
        rngs = nnx.Rngs(seed)
        self.inner, self.outer = nnx.Linear(2, WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs, **layer)

    def __call__(self, x):
        return self.outer(self.dropout(self.inner(x)))


class NewFlag(New):
    def __call__(self, x, train):
        return self.outer(self.dropout(self.inner(x), deterministic=not train))


class NewAttribute(New):
    def __init__(self):
        super().__init__()
        self.training = False

    def __call__(self, x):
        return self.outer(self.dropout(self.inner(x), deterministic=not self.training))


class NewStream(New):
    def __init__(self):
        super().__init__()
        self.dropout = nnx.Dropout(0.5)

    def __call__(self, x, *, rngs):
        return self.outer(self.dropout(self.inner(x), rngs=rngs))


NNX = {
    "on": New(),
    "off": New(deterministic=True),
    "unset": New(deterministic=None),
    "a flag": NewFlag(),
    "an attribute": NewAttribute(),
    "a stream that is passed": NewStream(),
}


@pytest.mark.parametrize("name", NNX)
def test_an_nnx_module_draws_in_training_and_nowhere_else(name):
    module = NNX[name]
    model = as_model(module)
    params = model.init(KEY, INPUTS, CLASSES)
    wanted = module.outer(module.inner(INPUTS))
    for _ in range(2):
        np.testing.assert_array_equal(model.apply(params, INPUTS), wanted)
    first, again, other = (model.train(params, INPUTS, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (first != wanted).any() and (other != wanted).any()


def test_two_layers_of_an_nnx_module_drop_apart():
    layers = [nnx.Dropout(0.5, rngs=nnx.Rngs(seed)) for seed in (0, 0)]
    model = as_model(nnx.Sequential(*layers))
    dropped = model.train(model.init(KEY, INPUTS, CLASSES), jnp.ones((100, 100)), KEY)
    # A quarter survives two independent masks, half would survive the same one twice.
    assert 0.2 < (dropped != 0).mean() < 0.3


def test_an_nnx_module_trains_from_its_own_weights_and_predicts():
    module, made = New(seed=3, rate=0.2), federation()
    run = fedlap.Simulation.of(fedlap.FedLapCov(delta=1.0), made, module, solver=ADAM)
    assert same_bits(run.init().start.tree, jax.tree.map(jnp.float64, nnx.state(module, nnx.Param)))

    history = fedlap.simulate(fedlap.FedLapCov(delta=1.0), made, module, solver=ADAM, rounds=2, seed=5)
    assert not same_bits(history.state.server.w.tree, run.init().start.tree)
    nnx.update(module, history.state.server.w.tree)  # the weights are the module's own kind of state
    module.eval()
    wanted = jax.nn.softmax(module(made.test_inputs))
    np.testing.assert_allclose(history.predict(made.test_inputs), wanted, rtol=1e-5)


def test_the_engines_agree_on_an_nnx_module_that_draws():
    options = {"rounds": 1, "solver": ADAM}
    found = [
        fedlap.simulate(fedlap.FedAvg(), federation(), New(), engine=engine, **options).final.w
        for engine in ("vectorised", "sequential")
    ]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_nnx_modules_are_compared_by_value_and_kept_as_they_were():
    module = New()
    model = as_model(module)
    before = model.apply(model.init(KEY, INPUTS, CLASSES), INPUTS)
    assert model == as_model(module) == as_model(New()) and hash(model) == hash(as_model(New()))
    assert module.dropout.deterministic is False and module.dropout.rngs.count[...] == 0
    assert repr(model) == repr(as_model(New())) != repr(as_model(New(rate=0.25)))
    module.inner.bias[...] += 1.0
    assert as_model(module) != model != as_model(New(seed=1)) and model != as_model(New(rate=0.25))
    np.testing.assert_array_equal(model.apply(model.init(KEY, INPUTS, CLASSES), INPUTS), before)


class Normalised(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(x)


class Counting(nnx.Module):
    def __init__(self):
        self.calls = jnp.zeros(())

    def __call__(self, x):
        self.calls = self.calls + 1
        return x


class NewRestless(nnx.Module):
    def __init__(self):
        self.rngs = nnx.Rngs(0)

    def __call__(self, x):
        return x + self.rngs.normal(x.shape)


def test_an_nnx_module_with_state_is_refused():
    with pytest.raises(
        ConfigError, match=r"Normalised keeps state \(norm\.mean, norm\.var\); expected .* weights only"
    ):
        as_model(Normalised())
    for module, message in [(Counting(), "Counting keeps state"), (NewRestless(), "NewRestless draws random numbers")]:
        model = as_model(module)
        with pytest.raises(ConfigError, match=message):
            model.apply(model.init(KEY, INPUTS, CLASSES), INPUTS)


def test_arrays_of_an_nnx_module_are_constants():
    class Shifted(New):
        def __init__(self):
            super().__init__()
            self.shift = np.ones(2)

        def __call__(self, x):
            return super().__call__(x + self.shift)

    module = Shifted()
    model = as_model(module)
    module.shift[:] = 7.0
    params = model.init(KEY, INPUTS, CLASSES)
    np.testing.assert_array_equal(model.apply(params, INPUTS), as_model(New()).apply(params_of(New()), INPUTS + 1))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3 * WIDTH + (WIDTH + 1) * CLASSES


def params_of(module):
    return as_model(module).init(KEY, INPUTS, CLASSES)


def test_a_linen_module_has_the_precision_of_the_run():
    """Flax draws float32; curvature and weights of two precisions do not fit into one loop."""
    history = fedlap.simulate(fedlap.FedLapCov(delta=1.0), federation(), Keyword(0.5), solver=ADAM, rounds=1)
    assert history.final.w.dtype == history.precision.dtype == np.float64
