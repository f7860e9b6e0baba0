"""Flower's message API in one process: its strategy, its messages, its ClientApp, eager PyTorch in the client.

Flower's own simulation needs Ray. Here its `Strategy.start` talks to a grid that hands every message to the
ClientApp at once: no copies between processes and no waiting, so less than Flower's own engine spends.
"""

import logging
from collections import OrderedDict

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.peers.contestants.torch_client import batches, network, tensors, train


class InProcess(Grid):
    """A grid whose nodes are calls of one ClientApp."""

    def __init__(self, app, count):
        self._app = app
        self._contexts = {node: self._context(node) for node in range(1, count + 1)}

    @staticmethod
    def _context(node):
        return Context(
            run_id=1, node_id=node, node_config={"partition-id": node - 1}, state=RecordDict(), run_config={}
        )

    def get_node_ids(self):
        return list(self._contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]

    def set_run(self, run):
        raise NotImplementedError

    run = property(set_run)

    def create_message(self, *arguments):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError


def play(work, variant, turns):
    torch.set_num_threads(int(variant))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message asks who sends it
    grid = InProcess(client_app(work), len(work.sizes))
    names = list(network(work).state_dict())
    start = ArrayRecord(OrderedDict(zip(names, map(torch.from_numpy, work.weights), strict=True)))
    everybody = {"fraction_train": 1.0, "fraction_evaluate": 0.0}
    strategy = FedAvg(**everybody) if work.algorithm == "FedAvg" else FedProx(**everybody, proximal_mu=work.alpha)
    while True:
        arrays = strategy.start(grid=grid, initial_arrays=start, num_rounds=1).arrays
        if turns.over(lambda arrays=arrays: [weight.numpy() for weight in arrays.to_torch_state_dict().values()]):
            return


def client_app(work):
    """A ClientApp in the style of Flower's PyTorch quickstart, with one model that is loaded for each message."""
    app, data, of_client, model = ClientApp(), tensors(work), batches(work), network(work)

    @app.train()
    def answer(message, context):
        client = context.node_config["partition-id"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        prox = message.content["config"].get("proximal-mu", 0.0)
        train(model, data, of_client[client], work.rate, prox)
        metrics = MetricRecord({"num-examples": int(work.sizes[client])})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app
