"""A client in PyTorch, shared by those who train with it: the networks, and the eager local loop."""

import torch
from torch import nn


def network(work) -> nn.Module:
    """The model of that name, in the precision of the data."""
    return _network(work.model).to(torch.from_numpy(work.inputs).dtype)


def _network(model):
    if model == "logistic":
        return nn.Linear(42, 2, bias=False)
    if model == "mlp":
        layers = nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10)
        return nn.Sequential(nn.Flatten(), *layers)
    convolutions = [layer for channels, width in ((3, 32), (32, 64)) for layer in _block(channels, width)]
    dense = nn.Flatten(), nn.Linear(2304, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*convolutions, *dense).to(memory_format=torch.channels_last)


def _block(channels, width):
    first, second = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3)
    return first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2)


def tensors(work):
    """All rows, images with their channels last in memory, and their labels."""
    inputs = torch.from_numpy(work.inputs)
    if work.model == "cnn":
        inputs = inputs.permute(0, 3, 1, 2)  # channels stay last in memory
    return inputs, torch.from_numpy(work.labels)


def batches(work):
    """Every client's minibatches, as row numbers."""
    return [[torch.from_numpy(rows) for rows in work.batches(k)] for k in work.clients]


def train(model, data, batches, rate, prox):
    """A client's local steps; α(w − w_g) is added to the gradient, which is faster than a term of the loss."""
    inputs, labels = data
    parameters = list(model.parameters())
    start = [parameter.detach().clone() for parameter in parameters] if prox else []
    optimiser = torch.optim.Adam(parameters, lr=rate, fused=True)
    for rows in batches:
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        if prox:
            with torch.no_grad():
                # The difference first: αw − αw_g is not quite 0 at w_g, and Adam makes a whole step of next to nothing.
                away = torch._foreach_sub(parameters, start)
                torch._foreach_add_([parameter.grad for parameter in parameters], away, alpha=prox)
        optimiser.step()


@torch.no_grad()
def put(model, weights):
    """Weights into a model, in place."""
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)
