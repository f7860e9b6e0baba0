"""pfl by its documentation: a federated data set, its simulated backend, its algorithms, its loop.

A user's data set hands out the given minibatches, users are drawn in their order, each once a round, and statistics
are weighted by data points. Its first round evaluates every user besides; that is in its start-up only.
"""

from functools import partial

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.contestants.torch_client import batches, network, put, tensors

ALL_ROUNDS = 1_000_000  # more than anybody asks for


class Module(torch.nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, work):
        super().__init__()
        self.network = network(work)

    def forward(self, inputs):
        return self.network(inputs)

    def loss(self, inputs, labels, is_eval=False):
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs, labels, is_eval=True):
        loss = torch.nn.functional.cross_entropy(self(inputs), labels, reduction="sum")
        return {"loss": Weighted(loss.item(), len(labels))}


class GivenBatches(PyTorchTensorDataset):
    """A user's data, seen in the minibatches given."""

    def __init__(self, data, rows, given, user_id):
        super().__init__(tuple(each[rows] for each in data), user_id=user_id)
        self._data, self._given = data, given

    def iter(self, batch_size):
        for rows in self._given:
            yield [each[rows] for each in self._data]


class Takes(TrainingProcessCallback):
    """Gives the word back after every round, and begins the next where the first began."""

    def __init__(self, turns, weights):
        self._turns, self._weights = turns, weights

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        module = model.pytorch_model
        over = self._turns.over(lambda: [parameter.detach().numpy().copy() for parameter in module.parameters()])
        put(module, self._weights)
        return over, Metrics()


def play(work, variant, turns):
    torch.set_num_threads(int(variant))
    data, count = tensors(work), len(work.sizes)
    ends = work.sizes.cumsum().tolist()
    users = [
        GivenBatches(data, slice(end - size, end), given, str(user))
        for user, (size, end, given) in enumerate(zip(work.sizes.tolist(), ends, batches(work), strict=True))
    ]
    federated = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(count))))
    start = [torch.from_numpy(weight) for weight in work.weights]
    module = Module(work)
    put(module, start)
    model = PyTorchModel(module, partial(torch.optim.Adam, fused=True), torch.optim.SGD(module.parameters(), lr=1.0))
    numbers = {
        "central_num_iterations": ALL_ROUNDS,
        "evaluation_frequency": ALL_ROUNDS,
        "train_cohort_size": count,
        "val_cohort_size": 0,
    }
    prox = work.algorithm == "FedProx"
    algorithm = FedProx() if prox else FederatedAveraging()
    algorithm.run(
        FedProxParams(**numbers, mu=work.alpha) if prox else NNAlgorithmParams(**numbers),
        SimulatedBackend(training_data=federated, val_data=None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.rate, local_batch_size=work.rows.shape[-1]),
        NNEvalHyperParams(local_batch_size=None),
        [Takes(turns, start)],
        send_metrics_to_platform=False,
    )
