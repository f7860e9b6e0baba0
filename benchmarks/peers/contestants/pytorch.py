"""Eager PyTorch as public research code writes it: one model, a loop over clients, a weighted mean of weights."""

import torch

from benchmarks.peers.contestants.torch_client import batches, network, put, tensors, train


def play(work, variant, turns):
    torch.set_num_threads(int(variant))
    data, model = tensors(work), network(work)
    of_client, shares = batches(work), (work.sizes / work.sizes.sum()).tolist()
    start = [torch.from_numpy(weight) for weight in work.weights]

    def work_round():
        total = [torch.zeros_like(weight) for weight in start]
        for client, share in zip(of_client, shares, strict=True):
            put(model, start)
            train(model, data, client, work.rate, work.prox)
            torch._foreach_add_(total, [parameter.detach() for parameter in model.parameters()], alpha=share)
        return total

    while True:
        total = work_round()
        if turns.over(lambda total=total: [weight.numpy() for weight in total]):
            return
