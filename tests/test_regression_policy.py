"""A site of a regression against a server that means ill: weights that few rows decide, and a past that never was."""

import numpy as np
import pytest

import regression_studies as regressions
from fedlap.errors import DataError
from fedlap.study.agreement.policy import SitePolicy
from fedlap.study.protocol.messages import Request, pack
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.regression.contents import Question, Standard, Weights, read_answer
from fedlap.study.protocol.regression.site import RegressionSite

RIGHT = "age + sex + smoker"
MODELS = {
    "binomial": (["ill"], {"formula": f"ill ~ {RIGHT}", "family": "binomial", "robust": True}),
    "poisson": (["visits"], {"formula": f"visits ~ {RIGHT}", "family": "poisson"}),
    "multinomial": (["ward"], {"formula": f"ward ~ {RIGHT}", "family": "multinomial"}),
    "cox": (["time", "died"], {"formula": RIGHT, "duration": "time", "event": "died"}),
}


class Server:
    """It has a member's real rows before it, behind the site, and asks what it likes."""

    def __init__(self, folder, kind, rules=None, frames=None):
        outcome, settings = MODELS[kind]
        self.study, files = regressions.make(folder, [*outcome, "age", "sex", "smoker"], settings, frames)
        self.said, self.steps, self.size = [], 0, self.study.model.size
        self.site = RegressionSite.of(self.study, "north", files["north"], folder / "state", self.said.append, rules)
        opening = self.site.records.opening.columns
        centred = "Intercept" not in self.study.design.names
        spread = np.sqrt(np.diag(opening.products) / opening.rows)
        ones = np.array([name == "Intercept" for name in self.study.design.names])
        self.standard = Standard(np.where(ones, 0, opening.mean), np.where(ones, 1, spread), np.array(1.0))
        assert centred or ones.sum() == 1
        self.ask("begin", self.standard, -1)

    def ask(self, kind, record, number, accepted=-1):
        return self.site.answer(Request(kind, self.study.digest, "r1", number, accepted, pack(record)))

    def question(self, w, S=None, search=False):
        S = np.eye(self.size) if S is None else S
        return Question(np.asarray(w, float), S, np.ones(self.size, bool), np.array(search))

    def first(self):
        """The first round as the study has it."""
        return self.ask("answer", self.question(np.zeros(self.size), search=True), 0)

    def steep(self, slope):
        """Weights that hang on the age alone, with the oldest row where the model is not sure of it."""
        names = list(self.study.design.names)
        age = names.index("age")
        oldest = (self.site.records.checked.values["age"].max() - self.standard.shift[age]) / self.standard.spread[age]
        w = np.zeros(len(names))
        w[age] = slope
        if "Intercept" in names:
            w[names.index("Intercept")] = -slope * oldest
        return np.tile(w, self.size // len(names))


def refused(server, reply, rule):
    assert not reply.arrays
    return reply.refusal == Reason.POLICY and rule in server.said[-1]


@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_a_few_rows_decide_are_refused_in_every_question(kind, tmp_path):
    server = Server(tmp_path, kind)
    assert not server.first().refusal
    w = server.steep(40.0)
    assert refused(server, server.ask("answer", server.question(w), 1, 0), "of 90 rows; expected at least 10.0")
    assert refused(server, server.ask("closing", Weights(w), 1), "minimum_rows = 10")
    if server.study.robust:
        assert refused(server, server.ask("meat", Weights(w), 1), "minimum_rows = 10")
    soft = server.steep(0.1)
    assert not server.ask("answer", server.question(soft), 1, 0).refusal
    assert not server.ask("closing", Weights(soft), 2).refusal


def test_without_the_rule_such_weights_return_a_patients_record(tmp_path):
    """The curvature at a model that is unsure of one row alone is that row's."""
    open_site = SitePolicy(minimum_rows=1, parameters_per_row=1.0)
    server = Server(tmp_path, "binomial", open_site)
    server.first()
    V = read_answer(server.ask("answer", server.question(server.steep(200.0)), 1, 0).arrays, 4, "north").factor.V
    names, rows = list(server.study.design.names), server.site.records.checked
    age, one = names.index("age"), names.index("Intercept")
    found = V[age, one] / V[one, one] * server.standard.spread[age] + server.standard.shift[age]
    assert found == pytest.approx(rows.values["age"].max(), abs=0.1)


def test_a_search_that_ends_where_a_few_rows_decide_is_not_told(tmp_path):
    """Whoever is older is ill: with hardly any precision the site's own search becomes surer and surer of it."""
    frames = {
        name: frame.assign(ill=(frame["age"] > 60).astype(int)) for name, frame in regressions.hospitals().items()
    }
    server = Server(tmp_path, "binomial", frames=frames)
    assert not server.first().refusal
    weak = server.question(np.zeros(4), 1e-9 * np.eye(4), search=True)
    assert refused(server, server.ask("answer", weak, 1), "of 90 rows; expected at least 10.0")


def test_the_first_weights_and_later_precisions_follow_from_the_study(tmp_path):
    server = Server(tmp_path, "binomial")
    zeros = np.zeros(4)
    for question in (server.question(zeros + 0.1), server.question(zeros, 0.1 * np.eye(4), True)):
        assert refused(server, server.ask("answer", question, 0), "the first weights follow from the study")
    V = read_answer(server.first().arrays, 4, "north").factor.V
    lower = server.question(zeros, 0.9 * V, search=True)
    assert refused(server, server.ask("answer", lower, 1, 0), "a precision is explained by the study's past")
    assert not server.ask("answer", server.question(zeros, V, search=True), 1, 0).refusal
    early = server.ask("closing", Weights(zeros), 0)
    assert early.refusal == Reason.CHANGED


def test_the_first_step_is_asked_first(tmp_path):
    server = Server(tmp_path, "binomial")
    assert server.ask("answer", server.question(np.zeros(4) + 0.1), 1).refusal == Reason.GAP


def test_a_mean_outside_of_the_studys_range_begins_nothing(tmp_path):
    server = Server(tmp_path, "binomial")
    age = list(server.study.design.names).index("age")
    for change in ({"shift": 130.0}, {"spread": 61.0}):
        (name, value), wrong = *change.items(), server.standard
        array = getattr(wrong, name).copy()
        array[age] = value
        reply = server.ask("begin", wrong._replace(**{name: array}), -1)
        assert refused(server, reply, "the pooled mean and spread of age are")


def test_a_site_begins_one_run_and_has_ten_rows_a_coefficient(tmp_path):
    server = Server(tmp_path, "binomial")
    site = server.site
    assert site.answer(Request("begin", site.study, "r2", arrays=pack(server.standard))).refusal == Reason.POLICY
    assert site.answer(Request("moments", site.study, "r2")).refusal == Reason.POLICY
    assert not site.answer(Request("moments", site.study, "r1")).refusal
    few = regressions.write(tmp_path, "few", regressions.hospitals()["north"][["ill", "age", "sex", "smoker"]].head(39))
    with pytest.raises(DataError, match=r"4 parameters from 39 rows; .* at most 0\.1 .* parameters_per_row = 0\.11 "):
        RegressionSite.of(server.study, "north", few)
    (tmp_path / "policy.toml").write_text("parameters_per_row = 0.11")
    RegressionSite.of(server.study, "north", few)
