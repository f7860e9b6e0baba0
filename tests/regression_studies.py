"""Regressions over sites with a file each, in one process, for the tests of their studies."""

import numpy as np

from cohorts import drawn_hospitals
from fedlap.errors import DataError
from fedlap.study.agreement.policy import SitePolicy
from fedlap.study.agreement.regression import resolve_regression
from fedlap.study.protocol.messages import Reply, Request, decode, encode
from fedlap.study.protocol.regression.coordinator import RegressionCoordinator
from fedlap.study.protocol.regression.site import RegressionSite

# So many coefficients as these studies have, for files as small as theirs.
RULES = SitePolicy(parameters_per_row=0.33)
MEMBERS = ("north", "south", "west")
COLUMNS = {
    "age": {"kind": "number", "unit": "years", "minimum": 0, "maximum": 120},
    "sex": {"kind": "category", "categories": ["female", "male"]},
    "smoker": {"kind": "number"},
    "copies": {"kind": "number", "minimum": 1},
    "shift": {"kind": "number"},
    "years": {"kind": "number", "minimum": 0},
    "treated": {"kind": "number"},
    "ill": {"kind": "number"},
    "pressure": {"kind": "number"},
    "visits": {"kind": "number"},
    "claims": {"kind": "number"},
    "cost": {"kind": "number"},
    "cured": {"kind": "number"},
    "ward": {"kind": "category", "categories": ["heart", "lung", "surgery"]},
    "time": {"kind": "number", "minimum": 0},
    "died": {"kind": "number"},
}


def hospitals(seed=3, sizes=(90, 70, 50)):
    """Frames of three hospitals with an outcome for every family, and durations with ties."""
    rng = np.random.default_rng(seed)
    frames = drawn_hospitals(rng, sizes)
    for frame in frames.values():
        risk = 0.03 * (frame["age"] - 60) + 0.4 * (frame["sex"] == "male")
        frame["time"] = np.ceil(rng.exponential(20 / np.exp(risk)))
        frame["died"] = (rng.random(len(frame)) < 0.7).astype(int)
    return frames


def table(used, regression, **sections):
    """The settings of a study that uses these columns."""
    chosen = {name: COLUMNS[name] for name in used}
    study = {"name": "wards", "members": list(MEMBERS), **sections.pop("study", {})}
    columns, network = {**chosen, **sections.pop("columns", {})}, {"deadline": 0.01, "retries": 0}
    return {"study": study, "columns": columns, "regression": regression, "network": network, **sections}


def make(folder, used, regression, frames=None, **sections):
    """A study in a folder, and its members' files."""
    study = resolve_regression(table(used, regression, **sections), folder / "study.toml")
    files = {name: write(folder, name, frame[list(used)]) for name, frame in (frames or hospitals()).items()}
    return study, files


def write(folder, name, frame):
    """A frame as a CSV file, without the loss of a digit."""
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False)
    return path


class Wire:
    """A transport that turns everything into bytes and back, and does to it what `fault` says.

    `fault(request, member, bytes)` gets the reply's bytes and returns those that arrive, or None for none.
    """

    def __init__(self, study, files, folder, fault=None):
        self.study, self.files, self.folder = study, files, folder
        self.fault = fault or (lambda request, member, data: data)
        self.asked, self.refusals = [], []
        self.restoring = set()  # members whose operators want back from the server what is lost

    def site(self, name):
        site = RegressionSite.of(self.study, name, self.files[name], self.folder / name, rules=RULES)
        site.restore = name in self.restoring
        return site

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            self.asked.append((name, request.kind, request.round))
            assert self.asked.count(self.asked[-1]) < 5, f"{name} is asked again and again: {self.refusals}"
            received = decode(encode(request), Request)
            # A new site for each message: whatever it needs to know it must find on its disk.
            reply = self.site(name).answer(received)
            self.refusals += [reply.refusal] if reply.refusal else []
            data = self.fault(request, name, encode(reply))
            if data is not None:
                try:
                    yield name, decode(data, Reply)
                except DataError as error:
                    yield name, error


def coordinator(study, transport, folder, tell=lambda event: None, without=()):
    return RegressionCoordinator(study, transport, folder / "server", tell, without)


def run(study, files, folder, fault=None):
    """The outcome of a run, and the transport that it went over."""
    wire = Wire(study, files, folder, fault)
    return coordinator(study, wire, folder).run(), wire
