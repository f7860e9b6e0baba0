"""FedJAX by its documentation: a Haiku model, its client data sets, its FedAvg and FedProx.

A client's data set hands out the given minibatches, padded to one shape and masked as FedJAX pads them: one program
instead of one for each length, and devices of the pmap backend need one shape.
"""

import fedjax
import haiku
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.work import channels_first, channels_last

MASK = fedjax.EXAMPLE_MASK_KEY


class GivenBatches(fedjax.ClientDataset):
    """A client's data, seen in the minibatches given."""

    def __init__(self, work, client):
        end = work.sizes[: client + 1].sum()
        begin = end - work.sizes[client]
        super().__init__({"x": work.inputs[begin:end], "y": work.labels[begin:end].astype(np.int32)})
        rows = work.rows[client, : work.steps[client]]
        self._given = [(np.where(r >= 0, r - begin, 0), r >= 0) for r in rows]

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
        for rows, mask in self._given:
            yield {**{name: values[rows] for name, values in self.raw_examples.items()}, MASK: mask}


def play(work, variant, turns):
    jax.config.update("jax_enable_x64", work.inputs.dtype == np.float64)
    with fedjax.for_each_client_backend(variant):
        algorithm = method(work, model_of(work))
    clients = [(k, GivenBatches(work, k), jax.random.PRNGKey(k)) for k in work.clients]
    names, start = to_haiku(work)
    state = algorithm.init(start)
    while True:
        after, _ = algorithm.apply(state, clients)
        jax.block_until_ready(after.params)
        if turns.over(lambda after=after: from_haiku(names, start, after.params)):
            return


def method(work, model):
    """The algorithm; FedProx knows no mask, so the loss of a padding row is nothing and the rest weigh more."""
    adam, sgd = fedjax.optimizers.adam(work.rate), fedjax.optimizers.sgd(1.0)
    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=work.rows.shape[-1], num_epochs=work.epochs)
    if work.algorithm == "FedAvg":
        return fedjax.algorithms.fed_avg.federated_averaging(fedjax.model_grad(model), adam, sgd, hparams)
    loss = fedjax.model_per_example_loss(model)

    def masked(params, batch, rng):
        mask = batch[MASK]
        return loss(params, batch, rng) * mask * (mask.size / mask.sum())

    return fedjax.algorithms.fed_prox.fed_prox(masked, adam, sgd, hparams, proximal_weight=work.alpha)


# The model ------------------------------------------------------------------------------------------------------------


def model_of(work):
    """A Haiku network."""

    def forward(batch):
        return haiku.Sequential(layers(work.model))(batch["x"])

    def loss(batch, outputs):
        logits = jax.nn.log_softmax(outputs)
        return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]

    sample = {"x": jnp.asarray(work.inputs[:1]), "y": jnp.asarray(work.labels[:1])}
    return fedjax.create_model_from_haiku(haiku.transform(forward), sample, loss)


def layers(model):
    if model == "logistic":
        return [haiku.Linear(2, with_bias=False)]
    relu = jax.nn.relu
    if model == "mlp":
        return [haiku.Flatten(), haiku.Linear(200), relu, haiku.Linear(100), relu, haiku.Linear(10)]
    convolutions = [layer for width in (32, 64) for layer in block(width)]
    return [*convolutions, haiku.Flatten(), haiku.Linear(512), relu, haiku.Linear(10)]


def block(width):
    first, second = haiku.Conv2D(width, 3, padding="SAME"), haiku.Conv2D(width, 3, padding="VALID")
    return first, jax.nn.relu, second, jax.nn.relu, haiku.MaxPool(2, 2, "VALID")


def to_haiku(work):
    """Where each weight stands in Haiku's parameters, whose matrices are [in, out], and those to begin with."""
    names, params, counts = [], {}, {}
    for weight in channels_last(work.weights):
        if weight.ndim > 1:
            kind = "conv2_d" if weight.ndim == 4 else "linear"
            counts[kind] = counts.get(kind, -1) + 1
            module = kind if counts[kind] == 0 else f"{kind}_{counts[kind]}"
        name = "w" if weight.ndim > 1 else "b"
        names.append((module, name))
        params.setdefault(module, {})[name] = jnp.asarray(weight.T if weight.ndim == 2 else weight)
    return names, params


def from_haiku(names, start, params):
    """Weights in PyTorch's order and layout. With this JAX the pmap backend leaves an axis of one device in front."""
    flat = [np.reshape(params[module][name], start[module][name].shape) for module, name in names]
    return channels_first([weight.T if weight.ndim == 2 else weight for weight in flat])
