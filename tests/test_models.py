"""Models: sizes, initialisation, dropout, and what counts as a model."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from fedlap.errors import ConfigError
from fedlap.models import network
from fedlap.models.model import Model, as_model, check_outputs
from fedlap.models.network import Activation, Convolution, Dense, Dropout, Network, acar_cnn, logistic, mlp, zenke_cnn

KEY = jax.random.key(0)


def batch(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def weights_of(model, inputs, classes=10):
    return jax.eval_shape(lambda key: model.init(key, inputs, classes), KEY)


def size(params):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


IMAGES = jax.ShapeDtypeStruct((2, 32, 32, 3), float)


def test_the_papers_mlp_has_178110_weights():
    assert size(weights_of(mlp(), batch(2, 28, 28))) == 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10 == 178110


def test_sizes_of_the_convolutional_networks():
    convolutions = (9 * 3 + 1) * 32 + (9 * 32 + 1) * 32 + (9 * 32 + 1) * 64 + (9 * 64 + 1) * 64
    # 32 → 32 → 30 → 15 → 15 → 13 → 6 pixels a side
    dense = (6 * 6 * 64 + 1) * 512 + 513 * 10
    assert size(weights_of(zenke_cnn(), IMAGES)) == convolutions + dense == 1_250_858
    # 32 → 28 → 14 → 10 → 5 pixels a side
    convolutions = (25 * 3 + 1) * 64 + (25 * 64 + 1) * 64
    dense = (5 * 5 * 64 + 1) * 384 + 385 * 192 + 193 * 10
    assert size(weights_of(acar_cnn(), IMAGES)) == convolutions + dense == 797_962


@pytest.mark.parametrize("model", [zenke_cnn(), acar_cnn()])
def test_convolutional_networks_give_one_output_a_class(model):
    images = jnp.zeros((2, 32, 32, 3))
    check_outputs(model, weights_of(model, images, 7), images, 7)


def test_logistic_starts_at_zero_with_two_logits_for_two_classes():
    inputs = batch(3, 5)
    (weight,) = jax.tree.leaves(logistic().init(KEY, inputs, 2))
    assert weight.shape == (2, 5) and not weight.any()
    assert size(logistic(bias=True).init(KEY, inputs, 2)) == 12


def test_mlp_is_its_formula():
    inputs = batch(4, 3, 2)
    model = mlp(hidden=(5,), activation="tanh")
    _, first, _, second = params = model.init(KEY, inputs, 3)
    hidden = jnp.tanh(inputs.reshape(4, 6) @ first["weight"].T + first["bias"])
    np.testing.assert_allclose(model.apply(params, inputs), hidden @ second["weight"].T + second["bias"])


@pytest.mark.parametrize(
    ("layer", "shape", "fan_in"),
    [(Dense(50), (2, 30), 30), (Dense(), (2, 40), 40), (Convolution(64, 5), (2, 32, 32, 3), 75)],
)
def test_initial_weights_fill_pytorchs_interval(layer, shape, fan_in):
    params, bound = layer.init(KEY, batch(*shape), 10), 1 / math.sqrt(fan_in)
    for leaf in params.values():
        # The largest of n uniform draws is below 1 − 7/n of the bound once in e⁷ times.
        assert bound * (1 - 7 / leaf.size) <= jnp.abs(leaf).max() <= bound
    # Five standard errors of the mean of U(−b, b), whose variance is b²/3.
    assert abs(params["weight"].mean()) < 5 * bound / math.sqrt(3 * params["weight"].size)


@pytest.mark.parametrize("terms", [5, 42, 67])
def test_tiny_products_side_by_side_are_products(terms):
    """Of clients with minibatches of their own, and of settings that share them."""
    inputs, weights = batch(3, 3, terms), batch(2, 3, 4, terms)  # of 67 terms those of two settings are large
    of_clients = jax.vmap(network.product)
    close = lambda found, equation, *of: np.testing.assert_allclose(found, jnp.einsum(equation, *of), 1e-12, 1e-12)
    close(of_clients(inputs, weights[0]), "kbf,kcf->kbc", inputs, weights[0])
    close(jax.vmap(of_clients, (None, 0))(inputs, weights), "kbf,skcf->skbc", inputs, weights)
    close(jax.vmap(network.product, (0, None))(inputs, weights[0, 0]), "kbf,cf->kbc", inputs, weights[0, 0])


def test_tiny_products_have_the_gradients_of_products(monkeypatch):
    inputs, weight = batch(4, 3), batch(2, 3)

    def all_of_it():
        function = lambda x, w: jnp.tanh(network.product(x, w)).sum()
        return network.product(inputs, weight), jax.grad(function, (0, 1))(inputs, weight)

    written_out = all_of_it()
    monkeypatch.setattr(network, "TINY", 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), written_out, all_of_it())


def test_weights_have_the_default_precision():
    assert {leaf.dtype for leaf in jax.tree.leaves(mlp((4,)).init(KEY, batch(2, 3), 2))} == {jnp.zeros(()).dtype}


def test_unknown_activation_is_reported_with_the_choices():
    with pytest.raises(ConfigError, match=r"'gelu'.*relu, sigmoid, tanh"):
        mlp(activation="gelu")


def test_dropout_acts_in_training_only():
    network = Network((Dropout(0.25),))
    inputs = jnp.ones((200, 100))
    dropped = network.train(({},), inputs, KEY)
    np.testing.assert_array_equal(network.apply(({},), inputs), inputs)
    np.testing.assert_allclose(jnp.unique(dropped), [0, 4 / 3])
    # 20,000 coins: five standard errors of their mean are 5 · √(0.25 · 0.75 / 20000) = 0.015.
    assert abs((dropped == 0).mean() - 0.25) < 0.015


def test_dropout_differs_between_layers_and_keys():
    network, inputs = Network((Dropout(0.5), Dropout(0.5))), jnp.ones((100, 100))
    train = lambda seed: network.train(({}, {}), inputs, jax.random.key(seed))
    np.testing.assert_array_equal(train(0), train(0))
    assert (train(0) != train(1)).any()
    # A quarter survives two independent masks, half would survive the same one twice.
    assert 0.2 < (train(0) != 0).mean() < 0.3


def test_the_cifar_network_drops_in_training_only():
    model, images = zenke_cnn(), batch(1, 32, 32, 3)

    @jax.jit
    def outputs(key, images):
        params = model.init(key, images, 10)
        return model.apply(params, images), model.train(params, images, key)

    evaluated, trained = outputs(KEY, images)
    assert jnp.abs(evaluated - trained).min() > 0


def test_models_are_compared_by_value():
    for make in (logistic, mlp, zenke_cnn, acar_cnn):
        assert make() == make() and hash(make()) == hash(make())
    assert mlp() != mlp(activation="tanh") and logistic() != logistic(bias=True)


def test_equal_models_share_one_compiled_program():
    traces = []

    def apply(model, params, inputs):
        traces.append(model)
        return model.apply(params, inputs)

    apply = jax.jit(apply, static_argnums=0)
    inputs = batch(2, 3)
    for _ in range(2):
        apply(mlp((4,)), mlp((4,)).init(KEY, inputs, 2), inputs)
    assert len(traces) == 1


class Perceptron(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.Dense(self.width)(x)))


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=True)(x)


def test_a_flax_module_is_a_model():
    inputs = batch(5, 2)
    model = as_model(Perceptron())
    params = model.init(KEY, inputs, 3)
    assert model == as_model(Perceptron()) != as_model(Perceptron(width=5)) and hash(model) == hash(
        as_model(Perceptron())
    )
    assert model.apply(params, inputs).shape == (5, 3)
    np.testing.assert_array_equal(model.apply(params, inputs), model.train(params, inputs, KEY))


def test_a_flax_module_with_a_list_in_it_is_a_model():
    """The commonest of all. It cannot be compared by value, so it is compared by identity."""
    module = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
    assert as_model(module) == as_model(module) != as_model(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)]))
    assert repr(as_model(module)) == repr(as_model(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])))
    history = fedlap.simulate(fedlap.FedLap(delta=1.0), fedlap.data.heart(), module, rounds=1)
    assert 0 < history.accuracy[0] <= 1


def test_a_flax_module_with_state_is_refused():
    with pytest.raises(ConfigError, match="batch_stats"):
        as_model(Normalised()).init(KEY, batch(5, 2), 2)


def linear_init(key, inputs):
    return jax.random.normal(key, (inputs.shape[-1], 3))


def linear_apply(params, inputs):
    return inputs @ params


def noisy_train(params, inputs, key):
    return linear_apply(params, inputs) + jax.random.normal(key, (len(inputs), 3))


def test_plain_functions_are_a_model():
    inputs = batch(5, 2)
    model = Model(init=linear_init, apply=linear_apply)
    assert as_model(model) is model and model == Model(linear_init, linear_apply)
    params = model.init(KEY, inputs, 3)
    np.testing.assert_array_equal(model.train(params, inputs, KEY), model.apply(params, inputs))
    noisy = Model(linear_init, linear_apply, train=noisy_train)
    assert noisy != model and (noisy.train(params, inputs, KEY) != noisy.apply(params, inputs)).all()


def test_networks_stay_themselves_and_others_are_refused():
    network = mlp()
    assert as_model(network) is network
    with pytest.raises(ConfigError, match="expected a model"):
        as_model("mlp")


def test_a_wrong_number_of_outputs_is_reported_with_both_numbers():
    inputs = batch(5, 2)
    model = as_model(Perceptron())
    with pytest.raises(ConfigError, match=r"\(5, 3\).*\(5, 10\)"):
        check_outputs(model, model.init(KEY, inputs, 10), inputs, 10)


def test_activations_are_named_values():
    assert Activation("relu") == Activation("relu")
    assert repr(Activation("relu")) == "Activation(name='relu')"
