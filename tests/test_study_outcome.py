"""A study from Python alone: sites with files, a coordinator, and in the end the model's files."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sites
from fedlap.study.agreement.contract import Study
from fedlap.study.model import load, save_outcome
from fedlap.study.protocol.coordinator import Coordinator
from fedlap.study.protocol.messages import Reply, decode, digest, encode, pack
from fedlap.study.protocol.metrics import Score
from fedlap.study.protocol.site import Site
from fedlap.study.protocol.terms import Terms
from studies import FILE, SMALL, write


@pytest.fixture
def study(tmp_path):
    settings = SMALL.replace('name = "fedlap"', 'name = "fedlap_cov"').replace("[columns]", "rounds = 2\n[columns]", 1)
    (tmp_path / "study.toml").write_text(settings.replace("test_fraction = 0.0", "test_fraction = 0.5"))
    return Study.read(tmp_path)


class Files(sites.Loopback):
    """The loopback transport between sites that have files."""

    def __init__(self, study, files, fault=None):
        super().__init__(Terms.of(study), study.folder, fault)
        self.study, self.files = study, files

    def site(self, name):
        return Site.of(self.study, name, self.files[name], rules=sites.RULES)


@pytest.fixture
def files(tmp_path):
    north = write(tmp_path, FILE, "north.csv")
    return {
        "north": north,
        "south": write(tmp_path, FILE + "44,2,medicine,male,ill\n45,,surgery,female,ill\n", "south.csv"),
    }


def test_a_python_caller_gets_the_model_its_card_and_its_history(study, files):
    outcome = Coordinator.of(study, Files(study, files)).run()
    folder = save_outcome(study.folder / "model", study, outcome)
    written = ["card.json", "history.json", "model.safetensors", "report.html"]
    assert sorted(path.name for path in folder.iterdir()) == written
    model = load(folder)
    assert model.card["rounds"] == 2 and model.card["members"] == outcome.sizes == {"north": 2, "south": 3}
    assert model.card["run"] == outcome.run
    left_out = {"north": {"after_round": 1, "how": "divided out"}}
    assert model.card["without"] == {}
    save_outcome(folder.with_name("without"), study, replace(outcome, without=left_out))
    assert load(folder.with_name("without")).card["without"] == left_out
    assert (
        model.card["weights_sha256"]
        == digest(pack(outcome.server.w))
        == digest(pack(type(outcome.server.w)(model.weights)))
    )
    assert np.array_equal(np.asarray(model.precision), np.asarray(outcome.precision))
    assert all(np.array_equal(*pair) for pair in zip(model.pooled, outcome.pooled, strict=True))
    history = json.loads((folder / "history.json").read_text())
    assert history == [report.as_dict() for report in outcome.history]
    last = {name: history[-1][name] for name in Score._fields}
    assert model.card["metrics"] == last and last["test_rows"] == 5
    assert (study.folder / "state" / "run" / "checkpoint.npz").exists()
    assert Site.of(study, "north", files["north"], rules=sites.RULES).audit_log.exists()


@pytest.mark.parametrize(
    "change, words",
    [
        ({".more": np.zeros(2)}, ".more is not expected"),
        ({".sum": np.zeros(3)}, r".sum is float64 (3,); expected float64 (2,)"),
        ({".rows": np.array(1.0)}, "south: 1 training rows; expected at least 2"),
    ],
)
def test_statistics_that_cannot_be_are_refused_and_nothing_begins(change, words, study, files):
    events = []

    def tell(event):
        events.append(event)
        if event.kind == "waiting":
            raise KeyboardInterrupt

    def damage(request, member, data):
        reply = decode(data, Reply)
        return encode(replace(reply, arrays={**reply.arrays, **change})) if member == "south" else data

    with pytest.raises(KeyboardInterrupt):
        Coordinator.of(study, Files(study, files, damage), tell=tell).run()
    assert [words in event.note for event in events if event.kind == "refused"] == [True]
    assert events[-1].note == "cannot begin without south"
