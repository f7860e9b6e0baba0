"""Sites and their server in one process, with every fault that a network has, for the tests of studies."""

import inspect

import numpy as np

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.engines.round import Method
from fedlap.engines.setup import Plan, draw_batches
from fedlap.study.agreement.policy import SitePolicy
from fedlap.study.protocol.coordinator import Coordinator
from fedlap.study.protocol.inquiry import Patience
from fedlap.study.protocol.messages import Reply, Request, decode, encode
from fedlap.study.protocol.site import Site
from fedlap.study.protocol.terms import Rows, Terms
from fedlap.study.table.encoding import Statistics

NAMES = ("ash", "birch", "cedar")
SIZES = (7, 12, 9)
CLASSES, FEATURES, SEED = 2, 3, 3
SOLVER = fedlap.adam(epochs=2, batch=4, learning_rate=0.05, keep=True)
SERVER_SOLVER = fedlap.descent(steps=50)


def make_federation(sizes=SIZES):
    """Three clients of different sizes, one of them with one class only."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=n)) for n in sizes]
    clients[0][1][:] = 1
    test = rng.normal(size=(11, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=11)
    return fedlap.Federation.from_arrays(clients=clients, test=test, names=NAMES, classes=CLASSES)


FEDERATION = make_federation()
# A handful of rows a site, and so no rule about how few there may be.
RULES = SitePolicy(minimum_rows=1, parameters_per_row=100)


def make_algorithm(name):
    """An algorithm with 0.5 for whatever it has no default for."""
    parameters = inspect.signature(ALGORITHMS[name]).parameters
    return ALGORITHMS[name](**{key: 0.5 for key, each in parameters.items() if each.default is each.empty})


def make_terms(algorithm, model=None, rounds=3, digest="d" * 64, solver=SOLVER):
    model = model or fedlap.logistic()
    common = {"seed": SEED, "rounds": rounds, "classes": CLASSES, "features": FEATURES, "numbers": 0}
    return Terms(digest, NAMES, model, Method(algorithm, solver, SERVER_SOLVER), **common, share_points=True)


def make_simulation(terms, engine="sequential", federation=FEDERATION):
    options = {"solver": terms.method.solver, "server_solver": SERVER_SOLVER, "seed": SEED, "engine": engine}
    return fedlap.Simulation.of(terms.algorithm, federation, terms.model, **options)


def simulate(terms, engine="sequential", absent=None, federation=FEDERATION):
    """The last state of the simulation in which, by round, these clients are absent."""
    run = make_simulation(terms, engine, federation)
    state = run.init()
    for round in range(terms.last_round + 1):
        drawn = np.array([name not in (absent or {}).get(round, ()) for name in NAMES])
        state = run.step(state, Plan(drawn, draw_batches(terms.method.solver, federation, drawn, SEED, round).all()))
    return state


class FederationRecords:
    """One client of the federation, its data encoded already; the test rows are dealt out among the clients."""

    def __init__(self, name, data="as it was", federation=FEDERATION):
        self.k, self.data, self.federation = NAMES.index(name), data, federation

    def statistics(self):
        return Statistics(np.array(float(self.federation.sizes[self.k])), *(np.zeros(0),) * 3)

    def check_pooled(self, pooled):
        """There are no number columns, whose means could be wrong."""

    def encode(self, pooled):
        test = self.federation.test_inputs[self.k :: 3], self.federation.test_labels[self.k :: 3]
        return Rows(*self.federation.of(self.k), *test)

    def fingerprint(self):
        return self.data


class Crash(BaseException):
    """A process that is no more."""


class Loopback:
    """A transport that turns everything into bytes and back, and does to it what `fault` says.

    `fault(request, member, bytes)` gets the reply's bytes and returns those that arrive, or None for none.
    """

    def __init__(self, terms, folder, fault=None, records=FederationRecords):
        self.terms, self.folder, self.records = terms, folder, records
        self.fault = fault or (lambda request, member, data: data)
        self.asked = []
        self.restoring = set()  # members whose operators want back from the server what is lost

    def site(self, name):
        site = Site(self.terms, name, self.records(name), self.folder / name, RULES)
        site.restore = name in self.restoring
        return site

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            self.asked.append((name, request.kind, request.round))
            assert self.asked.count(self.asked[-1]) < 30, f"asked again and again: {self.asked[-1]}"
            received = decode(encode(request), Request)
            # A new site for each message: whatever it needs to know it must find on its disk.
            data = self.fault(request, name, encode(self.site(name).answer(received)))
            if data is not None:
                try:
                    yield name, decode(data, Reply)
                except fedlap.errors.DataError as error:
                    yield name, error


def make_coordinator(terms, folder, transport=None, quorum=3, tell=lambda event: None, without=()):
    patience = Patience(quorum, deadline=0.01, retries=0)
    transport = transport or Loopback(terms, folder)
    return Coordinator(terms, lambda name, statistics: None, patience, transport, folder / "server", tell, without)
