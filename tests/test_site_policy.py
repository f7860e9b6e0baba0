"""A site's own policy against a server that means ill: what it asks, what it gets, and what the site's log says."""

import dataclasses

import numpy as np
import pytest
from typer.testing import CliRunner

import dishonest
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.study.agreement.policy import SitePolicy
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.messages import digest, pack
from fedlap.study.protocol.permits import Permits
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.site import Site
from fedlap.study.table.columns import Column
from fedlap.study.table.encoding import Statistics, pool
from fedlap.study.table.feasible import check_pooled


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return dishonest.hospitals(tmp_path_factory.mktemp("study"))


@pytest.fixture
def server(study, tmp_path):
    return dishonest.Server(*study, "va", tmp_path / "va")


def refused(server, reply, rule):
    """Whether the site has refused, with a fixed sentence for the server and the rule in its own log."""
    assert not reply.arrays and not reply.facts
    return reply.refusal == Reason.POLICY and rule in server.said[-1]


# The three attacks that were shown ------------------------------------------------------------------------------------


def test_asking_again_and_again_how_well_a_chosen_model_does_locates_nobody(server):
    """180 chosen models located the ages of all rows held back: steep ones count them on either side of a year."""
    assert not server.begin().refusal
    replies = [server.ask("finish", server.by_age(30 + k / 4, 0.001), dishonest.ROUNDS) for k in range(180)]
    answered = [reply for reply in replies if not reply.refusal]
    assert len(answered) == 1 and answered[0] == replies[0]
    assert {reply.refusal for reply in replies[1:]} == {Reason.CHANGED}
    late = server.ask("train", server.broadcast(), 0)
    assert late.refusal == Reason.LATE, "after the last report there is no round in which to ask"


def test_what_is_reported_in_rounds_tells_no_row_from_none(server):
    """A model that is hardly sure of anything passes; its counts are rounded to five rows, and its NLL to 0.01."""
    server.begin()
    server.ask("train", server.broadcast(), 0)
    ages, ill = server.own.test.values["age"], server.rows.test_labels == 1
    right = lambda years: int(((ages > years) == ill).sum())
    oldest = float(ages.max())
    for round, years in enumerate((oldest - 0.5, oldest + 0.5, 45.5, 50.5, 58.5, 63.5), 1):
        metrics = server.ask("train", server.by_age(years, 0.001, S=1e6), round, round - 1).facts["metrics"]
        assert metrics["rows"] == 26 and metrics["correct"] == 5 * np.round(right(years) / 5)
        assert metrics["nll"] / 26 == pytest.approx(np.round(metrics["nll"] / 26, 2), abs=1e-12)
    assert right(oldest - 0.5) != right(oldest + 0.5), "of the oldest alone a count would tell"
    last = server.ask("finish", server.by_age(60.5, 0.001), dishonest.ROUNDS, 6).facts["metrics"]
    assert last["correct"] == right(60.5), "the last report counts every row"


def test_cells_of_calibration_are_told_once_and_none_that_is_small(server, study, tmp_path):
    """With a bin's edge at the second-oldest of the rows held back, a count would be of the oldest alone."""
    server.begin()
    assert "calibration" not in server.ask("train", server.broadcast(), 0).facts
    second = float(np.sort(server.own.test.values["age"])[-2])
    cells = server.ask("finish", server.by_age(second, 0.02), dishonest.ROUNDS, 0).facts["calibration"]
    assert [sum(column) for column in zip(*cells["reliability"], strict=True)][1] == 26
    assert len(cells["reliability"]) <= 2 and min(cell[1] for cell in cells["reliability"]) >= 10
    assert cells["ranking"] == [] and np.bincount(server.rows.test_labels).min() < 10
    assert any("calibration is reported in" in line and "(minimum_rows)" in line for line in server.said)
    closed = dataclasses.replace(SitePolicy().for_study(study[0]), metrics=False)
    silent = dishonest.Server(*study, "va", tmp_path / "silent", closed)
    silent.begin()
    silent.ask("train", silent.broadcast(), 0)
    facts = silent.ask("finish", silent.broadcast(), dishonest.ROUNDS, 0).facts
    assert facts["calibration"] == {"brier": 0.0, "reliability": [], "ranking": []}


def test_a_steep_model_returns_a_patients_record_where_nothing_is_ruled_and_is_refused_by_default(study, tmp_path):
    """The curvature at a model that is unsure of one row alone is that row, squared."""
    open_site = SitePolicy(minimum_rows=2).for_study(study[0])
    open_site = dataclasses.replace(open_site, minimum_rows=1)
    found = {}
    for name, rules in (("open", open_site), ("usual", None)):
        server = dishonest.Server(*study, "va", tmp_path / name, rules)
        server.begin()
        server.ask("train", server.broadcast(), 0)
        before = server.ask("train", server.broadcast(), 0).arrays
        oldest = float(server.own.train.values["age"].max())
        reply = server.ask("train", server.by_age(oldest, 40.0, S=1e12), 1, 0)
        found[name] = server, before, reply
    server, before, reply = found["open"]
    rho = 1 / len(study[0].members)
    curvature = {key: reply.arrays[key] - (1 - rho) * before[key] for key in reply.arrays if key.startswith(".V")}
    weight, bias = (curvature[f".V.d.tree[1]['{name}']"][1] for name in ("weight", "bias"))
    (row,) = np.flatnonzero(server.own.train.values["age"] == server.own.train.values["age"].max())
    np.testing.assert_allclose(np.sqrt(weight / bias), np.abs(server.rows.inputs[row]), atol=1e-3)
    server, _, reply = found["usual"]
    assert refused(server, reply, "effectively from 1.0 of 104 rows; expected at least 10.0")
    assert "minimum_rows = 10" in server.said[-1] and "too sure" in server.said[-1]


def test_means_of_zero_and_deviations_of_one_begin_nothing(server):
    assert refused(server, server.begin(means=np.zeros(5), deviations=np.ones(5)), "mean 0; expected a number from 18")
    assert not Permits(server.folder, server.study.digest, "va").begun()


def test_of_fifty_runs_one_is_begun_and_another_when_the_operator_agrees(server, study, tmp_path):
    replies = []
    for k in range(50):
        server.site(anew=True)  # it counts what is on its disk
        replies.append(server.begin(run=f"run{k}"))
    assert [bool(reply.refusal) for reply in replies] == [False] + [True] * 49
    assert refused(server, replies[-1], "runs = 1") and "fedlap study agree STUDY --name va" in server.said[-1]
    assert refused(server, server.ask("statistics", run="run7"), "runs = 1"), "nobody's time is wasted"
    assert not server.begin(run="run0").refusal, "the run that it is in goes on"
    words = ["study", "agree", str(study[0].path), "--name", "va", "--state", str(server.folder)]
    for _ in range(2):  # to agree twice is to agree once
        said = CliRunner().invoke(app, words)
        assert said.exit_code == 0 and "runs of 'heart' begun at va: 1; agreed to: 2 in all" in said.output
    assert [bool(server.begin(run=f"run{k}").refusal) for k in (7, 8, 9)] == [False, True, True]
    agreed = [entry for entry in verify(server.site().audit_log) if entry["kind"] == "agree"]
    assert [(entry["run"], entry["facts"]["runs"]) for entry in agreed] == [("run7", 2)]
    assert agreed[0]["facts"]["agreed"].endswith("+00:00")


def test_an_agreement_is_for_this_study_and_a_damaged_one_for_none(server):
    permits = Permits(server.folder, server.study.digest, "va")
    assert permits.agree().runs == 1
    assert Permits(server.folder, "0" * 64, "va").agreed() is None
    server.begin()
    permits.path.write_text('{"runs": 10}')
    reply = server.begin(run="r2")
    assert reply.refusal == Reason.OTHER and "not an agreement; delete it" in server.said[-1]


# Rounds, in their order, each once ------------------------------------------------------------------------------------


def content(reply):
    """What a reply says, whichever line of the audit log records it."""
    return reply.refusal, reply.facts, digest(reply.arrays)


def test_a_round_is_answered_once_and_to_the_same_request_the_same(server):
    server.begin()
    first = server.ask("train", server.broadcast(), 0)
    assert refused(server, server.ask("train", server.broadcast(), 20), "round 21; the study has rounds 1 to 20")
    assert refused(server, server.ask("train", server.broadcast(), -1), "round 0")
    soft = server.by_age(60, 0.01, S=1e6)
    assert server.ask("train", server.broadcast(), 0).arrays.keys() == first.arrays.keys()
    assert content(server.ask("train", server.broadcast(), 0)) == content(first)
    second = server.ask("train", soft, 1, 0)
    assert not second.refusal
    assert server.ask("train", server.by_age(61, 0.01), 1, 0).refusal == Reason.CHANGED
    assert "round 1 was another request before" in server.said[-1]
    assert server.ask("train", soft, 1, -1).refusal == Reason.CHANGED, "nor from another state"
    assert content(server.ask("train", soft, 1, 0)) == content(second)
    # The reply came too late: the next round continues from the one before.
    assert not server.ask("train", soft, 2, 0).refusal
    assert server.ask("train", server.by_age(62, 0.01), 1, 0).refusal == Reason.LATE


def test_the_end_is_after_the_last_round(server):
    server.begin()
    for number in (0, 19, 21):
        assert refused(server, server.ask("finish", server.broadcast(), number), "expected 20")
    steep = server.ask("finish", server.by_age(60.5, 40.0), dishonest.ROUNDS)
    assert not steep.refusal and steep.facts["metrics"]["rows"] == 0
    assert any("at the server's model effectively" in line and "minimum_rows" in line for line in server.said)


def test_where_all_take_part_in_every_round_none_is_left_out(tmp_path):
    server = dishonest.Server(*dishonest.hospitals(tmp_path, quorum=4), "va", tmp_path / "state")
    server.begin()
    rule = "rounds come one after the other"
    assert refused(server, server.ask("train", server.by_age(60, 0.01, S=1e6), 1), rule), "the first model is passed by"
    assert not server.ask("train", server.broadcast(), 0).refusal
    assert refused(server, server.ask("train", server.by_age(60, 0.01, S=1e6), 2, 0), "expected round 2")
    assert refused(server, server.ask("finish", server.by_age(60, 0.01, S=1e6), dishonest.ROUNDS, 0), rule)
    assert not server.ask("train", server.by_age(60, 0.01, S=1e6), 1, 0).refusal


# What the study's past explains ---------------------------------------------------------------------------------------


def test_the_first_model_is_the_studys(server):
    server.begin()
    for arrays in (server.by_age(60, 0.01), server.broadcast(S=2.0)):
        assert refused(server, server.ask("train", arrays, 0), "the first model follows from the study")
    rounded = {name: array * (1 + 1e-6) for name, array in server.broadcast().items()}
    assert not server.ask("train", rounded, 0).refusal, "another machine may round in another way"


def test_a_precision_is_at_least_the_prior_and_this_sites_own_part(server):
    server.begin()
    own = server.ask("train", server.broadcast(), 0).arrays
    at = ".S.d.tree[1]['weight']"
    known = server.broadcast()[at] + own[".V.d.tree[1]['weight']"]
    soft = server.by_age(60, 0.01, S=float(known.max()))
    lower = {**soft, at: known * 0.99}
    assert refused(server, server.ask("train", lower, 1, 0), "lower by")
    assert not server.ask("train", {**soft, at: known}, 1, 0).refusal


def test_a_full_precision_is_compared_as_a_matrix(study, tmp_path):
    full, files = dishonest.hospitals(tmp_path / "full", covariance="full")
    rules = SitePolicy(parameters_per_row=1.0).for_study(full)
    server = dishonest.Server(full, files, "va", tmp_path / "va", rules)
    server.begin()
    own = server.ask("train", server.broadcast(), 0).arrays
    arrays = server.broadcast()
    (name,) = [name for name in arrays if name.startswith(".S") and arrays[name].ndim == 2]
    matrix = own[".V.matrix"]
    vector = np.linalg.eigh(matrix)[1][:, -1]
    for factor, passes in ((0.5, False), (1.0, True)):
        less = matrix - (1 - factor) * (vector @ matrix @ vector) * np.outer(vector, vector)
        reply = server.ask("train", {**arrays, name: less.astype(arrays[name].dtype)}, 1, 0)
        assert passes == (not reply.refusal)


# Pooled statistics ----------------------------------------------------------------------------------------------------


def changed(server, **changes):
    """The pooled statistics with the first number column's, the age's, as they are said to be."""
    pooled = server.beginning.pooled
    return {name: np.r_[value, getattr(pooled, name)[1:]] for name, value in changes.items()}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"means": 17.0}, "mean 17; expected a number from 18 to 110 in years"),
        ({"means": 111.0}, "mean 111; expected"),
        ({"deviations": 46.5}, "deviation 46.5; expected at most half of the range, 46"),
        ({"deviations": -1.0}, "deviation -1; expected a number above 0"),
        ({"deviations": 1.0}, "expected some that the other 488 values can have beside this site's 104"),
        ({"means": 30.0}, "expected some that the other"),
        ({"counts": 103.0}, "103 values, of which 104 are this site's"),
        ({"counts": 593.0}, "expected from 104 to 592"),
        ({"counts": 591.5}, "591.5 values"),
    ],
)
def test_pooled_statistics_that_cannot_be_begin_nothing(changes, words, server):
    assert refused(server, server.begin(**changed(server, **changes)), words)


def test_points_are_shown_in_the_pooled_units_of_one_run(tmp_path):
    study, files = dishonest.hospitals(tmp_path, name="fedlap_func")
    server = dishonest.Server(study, files, "va", tmp_path / "va")
    pooled = server.beginning.pooled
    assert server.ask("points", pooled).arrays[".inputs"].shape == (2, 13)
    raw = pooled._replace(means=np.zeros(5), deviations=np.ones(5))
    assert refused(server, server.ask("points", raw), "mean 0; expected")


def test_rows_counted_in_two_ways_begin_nothing(server):
    reply = server.begin(rows=np.array(600.0))
    assert reply.refusal == Reason.SIZES and "592 training rows member by member, and 600 in all" in server.said[-1]


def test_pooled_statistics_of_rows_within_the_ranges_are_possible():
    """Whatever the rows are: at the ends of the range, constant, empty at a site, or far from zero."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = rng.choice([-1e6, -3.0, 0.0, 1e9])
        high = low + rng.choice([1.0, 50.0, 1e7])
        edges = rng.choice([-np.inf, low]), rng.choice([np.inf, high])
        column = Column("x", "number", minimum=float(edges[0]), maximum=float(edges[1]))
        kind, told = rng.integers(3), []
        for _ in range(rng.integers(1, 5)):
            rows = int(rng.integers(1, 40))
            count = int(rng.integers(0, rows + 1))
            drawn = rng.uniform(low, high, count), rng.choice([low, high], count), np.full(count, (low + high) / 2)
            values = drawn[kind]
            sums = [np.array([total]) for total in (float(len(values)), values.sum(), (values**2).sum())]
            told.append(Statistics(np.array(float(rows)), *sums))
        requirements = type("Asked", (), {"columns": (column,)})()
        for own in told:
            check_pooled(requirements, own, pool(told))


# What is known before anything is sent --------------------------------------------------------------------------------


def policy(folder, text):
    (folder / "policy.toml").write_text(text)


@pytest.fixture
def small(tmp_path):
    return dishonest.hospitals(tmp_path / "small", rounds=2)


def test_a_policy_that_is_no_file_is_not_taken_for_none(tmp_path):
    """A link to a share that is not mounted says nothing; the usual policy may be wider than what it would say."""
    path = tmp_path / "policy.toml"
    path.symlink_to(tmp_path / "elsewhere" / "policy.toml")
    with pytest.raises(ConfigError, match=r"policy\.toml: not a file; expected one, or none for the usual policy"):
        SitePolicy.beside(tmp_path / "va.csv")
    path.unlink()
    assert SitePolicy.beside(tmp_path / "va.csv") == SitePolicy()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"policy\.toml: not a file"):
        SitePolicy.beside(tmp_path / "va.csv")


@pytest.mark.parametrize(
    "text, words",
    [
        ("members = 5", "the study has 4 members, and this site takes part with 5 or more (members, "),
        ('columns = ["age", "sex"]', "uses the column 'chest_pain', which is not among the columns that this site"),
        ("minimum_rows = 105", "104 rows to fit to; this site's rule is at least 105 (minimum_rows, "),
        ("run = 2", "policy.toml: unknown key 'run'; did you mean 'runs'?"),
        ("runs = -1", "policy.toml: runs is -1; expected a whole number, 0 or above"),
        ("columns = 3", "policy.toml: columns is 3; expected a list of names"),
        ("metrics = 1", "policy.toml: metrics is 1; expected true or false"),
        ("parameters_per_row = 0", "policy.toml: parameters_per_row is 0; expected a number above 0"),
        ("members =", "policy.toml: not a TOML file"),
    ],
)
def test_a_study_that_is_none_for_this_site_is_refused_before_it_begins(text, words, small):
    study, files = small
    policy(files["va"].parent, text)
    with pytest.raises((ConfigError, DataError)) as error:
        Site.of(study, "va", files["va"])
    assert words in str(error.value)
    name_and_data = ["--name", "va", "--data", str(files["va"])]
    for command in (["study", "check", str(study.path)], ["node", str(study.path)]):
        result = CliRunner().invoke(app, [*command, *name_and_data])
        assert result.exit_code and (words in result.output or words in str(result.exception))


def test_two_members_are_too_few_unless_the_site_says_so(tmp_path, small):
    study, files = small
    two = dataclasses.replace(study, members=study.members[:2])
    name = two.members[0].name
    with pytest.raises(ConfigError, match=r"the study has 2 members, .*write members = 2 into policy\.toml"):
        Site.of(two, name, files[name])
    policy(files[name].parent, "members = 2")
    Site.of(two, name, files[name])


def test_a_full_covariance_needs_ten_rows_a_weight_unless_the_site_says_so(tmp_path):
    study, files = dishonest.hospitals(tmp_path, covariance="full")
    with pytest.raises(DataError, match=r"full covariance of 28 parameters from 104 rows; .* at most 0\.1 .* = 0\.27 "):
        Site.of(study, "va", files["va"])
    policy(files["va"].parent, "parameters_per_row = 0.27")
    Site.of(study, "va", files["va"])


def test_explain_prints_the_policy_and_where_it_is_from(small):
    study, files = small
    words = ["node", str(study.path), "--name", "va", "--data", str(files["va"]), "--explain"]
    usual = CliRunner().invoke(app, words).output
    assert "what this site allows: the usual policy (there is no policy.toml beside the data file)" in usual
    assert all(
        line in usual for line in ("  members            = 3 ", "  runs               = 1 ", "all of the study's")
    )
    policy(files["va"].parent, 'runs = 3\nminimum_rows = 20\ncolumns = ["age"]\n')
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, ConfigError), "a study that uses more is told so here, too"
    policy(files["va"].parent, "runs = 3\nminimum_rows = 20\n")
    own = CliRunner().invoke(app, words).output
    assert str(files["va"].parent / "policy.toml") in own and "= 3 " in own and "minimum_rows       = 20 " in own


def test_too_few_rows_held_back_are_not_reported_on(study, tmp_path):
    server = dishonest.Server(*study, "switzerland", tmp_path / "switzerland")
    assert len(server.rows.test_labels) == 9
    server.begin()
    assert (
        "nothing will be reported on the 9 rows held back" in server.said[0] and "minimum_rows = 10" in server.said[0]
    )
    assert server.ask("train", server.broadcast(), 0).facts["metrics"] == {"rows": 0, "correct": 0, "nll": 0.0}
    silent = SitePolicy(metrics=False).for_study(study[0])
    server = dishonest.Server(*study, "va", tmp_path / "va", silent)
    server.begin()
    assert "metrics = false" in server.said[0]
    assert server.ask("finish", server.broadcast(), dishonest.ROUNDS).facts["metrics"]["rows"] == 0


def test_a_policy_sends_nothing_of_itself(server):
    """A server learns that there is a rule, and nothing of what it says."""
    reply = server.begin(means=np.zeros(5), deviations=np.ones(5))
    assert reply.refusal == "its own policy does not allow this; its log names the rule"
    assert not pack(reply.facts) and not reply.arrays
