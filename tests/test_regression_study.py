"""Regressions over sites with a file each: the pooled answer, whatever is lost, stopped or sent again on the way."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedlap
import regression_studies as regressions
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.messages import Reply, Request, decode, encode, pack
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.regression.agreed import MOST_STEPS
from fedlap.study.protocol.regression.contents import SeveralWeights, Weights
from fedlap.study.results import load_regression, save_regression

RIGHT = "age + sex + smoker"
CASES = {
    "gaussian": ("pressure", {}, {"weights": "copies"}),
    "binomial": ("ill", {}, {}),
    "poisson": ("visits", {}, {"exposure": "years"}),
    "negative_binomial": ("claims", {}, {"offset": "shift"}),
    "gamma": ("cost", {}, {}),
    "multinomial": ("ward", {}, {}),
    "binomial of trials": ("cured", {"family": "binomial"}, {"trials": "treated"}),
    "gaussian with a prior": ("pressure", {"family": "gaussian", "prior_sd": 1.0}, {}),
}
ILL = ["ill", "age", "sex", "smoker"]
LOGISTIC = {"formula": f"ill ~ {RIGHT}", "family": "binomial"}


def both(case, folder):
    """The fit over the wire, and the same by `fedlap.glm` in one process: over sites, and on the pooled rows."""
    outcome, settings, roles = CASES[case]
    settings = {"family": case, **settings}
    formula, frames = f"{outcome} ~ {RIGHT}", regressions.hospitals()
    columns = [outcome, "age", "sex", "smoker", *roles.values()]
    study, files = regressions.make(folder, columns, {"formula": formula, **settings, **roles}, frames)
    found, _ = regressions.run(study, files, folder)
    prior = fedlap.normal(sd=settings["prior_sd"]) if "prior_sd" in settings else None
    options = {"family": settings["family"], "prior": prior, **roles}
    return (
        found,
        fedlap.glm(formula, {name: frames[name] for name in sorted(frames)}, **options),
        fedlap.glm(formula, {"all": pd.concat(frames.values(), ignore_index=True)}, **options),
    )


@pytest.mark.parametrize("case", CASES)
def test_a_regression_over_the_wire_is_that_of_the_pooled_rows(case, tmp_path):
    found, here, pooled = both(case, tmp_path)
    fit = found.fit
    assert fit.converged and list(fit.params.index) == list(here.params.index)
    for ours, same in [(fit.params, here.params), (fit.bse, here.bse), (fit.llf, here.llf)]:
        np.testing.assert_array_equal(ours, same)
    for ours, theirs in [(fit.params, pooled.params), (fit.bse, pooled.bse), (fit.llf, pooled.llf)]:
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert found.log_likelihood_null == here.llnull
    assert found.summary == str(here.summary())


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_a_cox_regression_over_the_wire_is_that_of_the_sites(ties, tmp_path):
    frames = regressions.hospitals()
    settings = {"formula": RIGHT, "duration": "time", "event": "died", "ties": ties, "robust": True}
    study, files = regressions.make(tmp_path, ["age", "sex", "smoker", "time", "died"], settings, frames)
    found, _ = regressions.run(study, files, tmp_path)
    ordered = {name: frames[name] for name in sorted(frames)}
    here = fedlap.cox(RIGHT, ordered, duration="time", event="died", ties=ties)
    for ours, same in [
        (found.fit.params, here.params),
        (found.fit.bse, here.bse),
        (found.fit.llf, here.llf),
        (found.fit.concordance, here.concordance),
        (found.robust.bse, here.robust("rows").bse),
    ]:
        np.testing.assert_array_equal(ours, same)
    with pytest.raises(ConfigError, match="the baseline hazard of west stays at west"):
        found.fit.baseline("west")


def test_what_each_site_has_to_do_with_the_fit(tmp_path):
    frames = regressions.hospitals()
    study, files = regressions.make(tmp_path, ILL, {**LOGISTIC, "robust": True, "influence": True}, frames)
    found, wire = regressions.run(study, files, tmp_path)
    here = fedlap.glm(LOGISTIC["formula"], {name: frames[name] for name in sorted(frames)})
    np.testing.assert_array_equal(found.robust.bse, here.robust("rows").bse)
    assert found.shares == here.shapley(refresh=False).to_dict()
    for name, left in found.without.items():
        np.testing.assert_array_equal(left.coefficients, here.without(name).params)
        np.testing.assert_array_equal(left.errors, here.without(name).bse)
    folder = save_regression(tmp_path / "result", study, found)
    table = pd.read_csv(folder / "influence.csv", float_precision="round_trip").set_index(["without", "name"])
    assert table.loc[("west", "age"), "coefficient"] == here.without("west").params["age"]
    asked = [kind for _, kind, _ in wire.asked]
    assert asked.count("losses") < 4 * len(frames), "coalitions are to be asked for at once"


# What is lost, stopped, or sent again ---------------------------------------------------------------------------------


class Stopped(BaseException):
    """A server that is no more."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    study, files = regressions.make(folder, ILL, LOGISTIC)
    found, wire = regressions.run(study, files, folder)
    return found, wire.asked


def same(found, other):
    np.testing.assert_array_equal(found.fit.params, other.fit.params)
    np.testing.assert_array_equal(found.fit.cov_params(), other.fit.cov_params())
    assert found.summary == other.summary


def test_a_server_that_is_stopped_in_any_step_goes_on_to_the_same_bits(tmp_path, undisturbed):
    whole, asked = undisturbed
    study, files = regressions.make(tmp_path, ILL, LOGISTIC)
    arrived = []
    for stop in range(1, len(asked), 4):  # in every step, with each of the three members in turn

        def fault(request, member, data, stop=stop):
            if len(arrived) == stop - 1:
                arrived.append(member)
                raise Stopped  # after the site has answered, before the server knows
            arrived.append(member)
            return data

        arrived.clear()
        folder = tmp_path / str(stop)
        with pytest.raises(Stopped):
            regressions.run(study, files, folder, fault)
        found, again = regressions.run(study, files, folder)
        same(found, whole)
        done = (stop - 1) // 3  # steps that everyone had answered
        over = asked[stop - 1][1] == "finish"  # it is so before anyone hears it
        assert len(again.asked) == (0 if over else len(asked) - 3 * done), "what was answered is not asked again"
    assert regressions.run(study, files, folder)[1].asked == [], "a run that is over asks nobody"


def test_a_question_about_some_weights_is_asked_once(undisturbed):
    """The sums at the optimum and at the null model, of all three members each time."""
    kinds = [kind for _, kind, _ in undisturbed[1]]
    assert kinds.count("closing") == 2 * 3 and kinds.count("losses") == 0


def test_a_lost_reply_changes_nothing(tmp_path, undisturbed):
    seen = set()

    def fault(request, member, data):
        key = request.kind, request.round, member
        return data if key in seen else seen.add(key)

    study, files = regressions.make(tmp_path, ILL, LOGISTIC)
    found, wire = regressions.run(study, files, tmp_path, fault)
    same(found, undisturbed[0])
    assert wire.asked.count(("south", "answer", 1)) == 2
    log = tmp_path / "south" / "audit-south.jsonl"
    entries = [entry for entry in verify(log) if entry["kind"] == "answer" and entry["round"] == 1]
    assert len(entries) == 2 and entries[0]["sha256"] == entries[1]["sha256"]


def damaged(change):
    def damage(data):
        reply = decode(data, Reply)
        arrays = {name: array.copy() for name, array in reply.arrays.items()}
        change(arrays)
        return encode(Reply(reply.member, reply.answers, reply.refusal, reply.facts, arrays))

    return damage


BAD = {
    "a curvature that is no number": (
        "answer",
        lambda a: a.update({".factor.V": a[".factor.V"] * np.nan}),
        "curvature",
    ),
    "another shape": ("answer", lambda a: a.update({".score": np.zeros(1)}), "expected float64"),
    "nothing": ("closing", lambda a: a.clear(), "is missing"),
    "fewer rows than one may have": ("moments", lambda a: a.update({".complete": np.array(3)}), "minimum_rows"),
    "too few rows a coefficient": ("moments", lambda a: a.update({".complete": np.array(11)}), "parameters_per_row"),
    "products of no rows": ("moments", lambda a: a[".columns.products"].__imul__(-1), "no rows have these products"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_reply_that_cannot_be_used_is_named_and_asked_for_again(kind, tmp_path, undisturbed):
    when, change, words = BAD[kind]
    hit, events = [], []

    def fault(request, member, data):
        if request.kind == when and member == "south" and not hit:
            hit.append(request)
            return damaged(change)(data)
        return data

    study, files = regressions.make(tmp_path, ILL, LOGISTIC)
    wire = regressions.Wire(study, files, tmp_path, fault)
    found = regressions.coordinator(study, wire, tmp_path, events.append).run()
    same(found, undisturbed[0])
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.member == "south" and words in refused.note
    (waiting,) = [event.note for event in events if event.kind == "waiting"]
    assert waiting == "a regression needs all members; waiting for south"


def test_rows_that_cannot_be_fitted_end_the_run(tmp_path):
    """Separation: another run of the same file would end as this one; a changed file may begin anew."""
    frames = regressions.hospitals()
    for frame in frames.values():
        frame["smoker"] = frame["ill"]
    study, files = regressions.make(tmp_path, ILL, LOGISTIC, frames)
    for _ in range(2):
        with pytest.raises(DataError, match=r"coefficients of .*smoker.* have no finite estimate"):
            regressions.run(study, files, tmp_path)
    assert checkpoint.read_progress(tmp_path / "server" / "checkpoint.npz").finished


def test_a_journal_of_other_requests_is_not_gone_on_with(tmp_path):
    study, files = regressions.make(tmp_path, ILL, LOGISTIC)
    _, wire = regressions.run(study, files, tmp_path)
    (folder,) = (tmp_path / "server").glob("steps-*")
    third, fourth = folder / "step-000002.npz", folder / "step-000003.npz"
    whole = third.read_bytes()
    third.write_bytes(fourth.read_bytes())
    with pytest.raises(ConfigError, match=r"step-000002\.npz: replies to other requests"):
        regressions.coordinator(study, wire, tmp_path).run()
    third.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match=r"step-000002\.npz: not a readable state file"):
        regressions.coordinator(study, wire, tmp_path).run()


# What a site refuses --------------------------------------------------------------------------------------------------


@pytest.fixture
def answered(tmp_path):
    """A site that has answered every step and not heard that the run is over, and the last of these."""
    study, files = regressions.make(tmp_path, ILL, LOGISTIC)

    def stop(request, member, data):
        if request.kind == "finish":
            raise KeyboardInterrupt
        return data

    wire = regressions.Wire(study, files, tmp_path, stop)
    with pytest.raises(KeyboardInterrupt):
        regressions.coordinator(study, wire, tmp_path).run()
    last = max(round for _, _, round in wire.asked)
    (run,) = {entry["run"] for entry in verify(tmp_path / "west" / "audit-west.jsonl")}
    return study, wire.site("west"), run, last


def ask(answered, kind, number, arrays=None, accepted=-1):
    study, site, run, _ = answered
    reply = site.answer(Request(kind, study.digest, run, number, accepted, arrays or {}))
    return next((reason for reason in Reason if reason.value == reply.refusal), reply.refusal)


def test_a_site_refuses_what_was_not_agreed_on(answered):
    _, site, _, last = answered
    weights, several = pack(Weights(np.zeros(4))), pack(SeveralWeights(np.zeros((2, 4))))
    assert ask(answered, "closing", last, weights) == Reason.CHANGED
    assert ask(answered, "closing", last + 1, weights) == ""
    assert ask(answered, "meat", last + 2, weights) == Reason.UNASKED
    assert ask(answered, "losses", last + 2, several) == Reason.ARRAYS
    assert ask(answered, "train", 0) == Reason.REQUEST
    question = {".w": np.zeros(4), ".S": np.eye(4), ".kept": np.ones(4, bool), ".search": np.array(True)}
    assert ask(answered, "answer", last + 3, question, accepted=last + 40) == Reason.GAP
    assert ask(answered, "answer", last + 3, question, accepted=last) == Reason.GAP, "the last step was a closing"
    assert ask(answered, "begin", -1, {".shift": np.zeros(4), ".spread": np.ones(4), ".outcome": np.array(1.0)}) == (
        Reason.BEGINNING
    )
    assert len(verify(site.audit_log)) > 10
    assert ask(answered, "closing", MOST_STEPS - 1, weights) == ""
    assert ask(answered, "closing", MOST_STEPS, weights) == Reason.BUDGET
    assert ask(answered, "closing", MOST_STEPS - 2, weights) == Reason.LATE


def test_once_a_site_has_heard_that_the_run_is_over_it_answers_nothing_new(answered):
    """What it has answered it says again, to a server that was stopped in between."""
    *_, last = answered
    weights = pack(Weights(np.zeros(4)))
    assert ask(answered, "closing", last + 1, weights) == ""
    assert ask(answered, "finish", -1) == ask(answered, "finish", -1) == ""
    assert ask(answered, "closing", last + 1, weights) == ""
    assert ask(answered, "closing", last + 2, weights) == Reason.LATE
    other = {".w": np.zeros(4) + 0.1}
    assert ask(answered, "closing", last + 1, other) == Reason.CHANGED


def test_a_site_whose_file_has_changed_does_not_go_on(answered):
    study, site, run, last = answered
    path = site.records.checked.path
    path.write_text(path.read_text().replace("female", "male", 1))
    other = type(site).of(study, "west", path, site.folder)
    assert ask((study, other, run, last), "closing", last + 1, pack(Weights(np.zeros(4)))) == Reason.DATA


def test_a_site_with_too_few_rows_a_coefficient_does_not_begin(tmp_path):
    frames = regressions.hospitals()
    study, _ = regressions.make(tmp_path, ILL, LOGISTIC, frames)
    few = regressions.write(tmp_path, "few", frames["west"][ILL].head(12))
    with pytest.raises(DataError, match=r"few\.csv: 12 complete rows for 4 coefficients; expected at least 13 rows"):
        regressions.RegressionSite.of(study, "west", few)
    enough = regressions.write(tmp_path, "enough", frames["west"][ILL].head(13))
    regressions.RegressionSite.of(study, "west", enough, rules=regressions.RULES)
    fewer = regressions.write(tmp_path, "fewer", frames["west"][ILL].head(9))
    with pytest.raises(DataError, match=r"fewer\.csv: 9 usable rows .* expected at least 10 \(minimum_rows"):
        regressions.RegressionSite.of(study, "west", fewer)


def test_a_value_that_the_model_cannot_have_is_named_by_its_row(tmp_path):
    frames = regressions.hospitals()
    settings = {"formula": f"visits ~ {RIGHT}", "family": "poisson", "exposure": "years"}
    study, files = regressions.make(tmp_path, ["visits", "years", "age", "sex", "smoker"], settings, frames)
    lines = files["west"].read_text().splitlines()
    header, *rows = lines
    for column, value, words in [
        ("years", "0", r"row 7: column 'years', the exposure, is 0; expected a number above 0"),
        ("visits", "-1", r"row 7: the outcome is -1; expected a count"),
    ]:
        cells = rows[5].split(",")
        cells[header.split(",").index(column)] = value
        files["west"].write_text("\n".join([header, *rows[:5], ",".join(cells), *rows[6:]]))
        with pytest.raises(DataError, match=rf"west\.csv, {words}"):
            regressions.RegressionSite.of(study, "west", files["west"])


# What comes out of it -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    frames = regressions.hospitals()
    study, files = regressions.make(folder, ILL, {**LOGISTIC, "robust": True}, frames)
    found, _ = regressions.run(study, files, folder)
    return save_regression(folder / "result", study, found), files, found, frames


def test_the_tables_have_every_digit(saved):
    folder, _, found, _ = saved
    table = pd.read_csv(folder / "coefficients.csv", index_col="name", float_precision="round_trip")
    np.testing.assert_array_equal(table["coefficient"], found.fit.params)
    np.testing.assert_array_equal(table["standard_error"], found.fit.bse)
    np.testing.assert_array_equal(table[["lower", "upper"]], found.fit.conf_int())
    np.testing.assert_array_equal(table["robust_standard_error"], found.robust.bse)
    assert (folder / "summary.txt").read_text() == found.summary + "\n"
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [each["round"] for each in rounds] == list(range(1, found.fit.rounds + 1))
    assert rounds[-1]["decrement"] < 1e-9


def test_the_saved_model_predicts_as_the_fit_does(saved, tmp_path):
    folder, files, found, frames = saved
    model = load_regression(folder / "model")
    wanted = found.fit.predict(frames["south"], 0.95)
    np.testing.assert_array_equal(model.predict(files["south"], 0.95).to_numpy(), wanted.to_numpy())
    new = regressions.write(tmp_path, "new", frames["south"][["age", "sex", "smoker"]])  # the outcome may be absent
    result = CliRunner().invoke(app, ["predict", str(folder / "model"), str(new), "--output", str(tmp_path / "p.csv")])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "p.csv", index_col="row")
    np.testing.assert_allclose(table, wanted, rtol=1e-9)
    assert list(table.index[:2]) == [2, 3] and list(table) == ["mean", "mean_ci_lower", "mean_ci_upper"]
    for options, words in (
        (["--posterior"], "--posterior goes with a model of classes"),
        (["--interval", "0.5", "--observation"], "a new outcome with the logit link is yes or no"),
    ):
        result = CliRunner().invoke(app, ["predict", str(folder / "model"), str(new), *options])
        assert isinstance(result.exception, ConfigError) and words in str(result.exception)


def test_a_saved_regression_of_numbers_says_where_a_new_outcome_lies(tmp_path):
    frames = regressions.hospitals()
    columns = {name: regressions.COLUMNS[name] for name in ("age", "cost")}
    study, files = regressions.make(tmp_path, columns, {"formula": "cost ~ age", "family": "gamma"}, frames)
    found, _ = regressions.run(study, files, tmp_path)
    folder = save_regression(tmp_path / "result", study, found)
    wanted = found.fit.predict(frames["south"], 0.8, observation=True)
    model = load_regression(folder / "model")
    np.testing.assert_array_equal(model.predict(files["south"], 0.8, observation=True), wanted)
    output = str(tmp_path / "p.csv")
    command = ["predict", str(folder / "model"), str(files["south"]), "--output", output, "--interval", "0.8"]
    assert CliRunner().invoke(app, [*command, "--observation"]).exit_code == 0
    np.testing.assert_allclose(pd.read_csv(output, index_col="row"), wanted, rtol=1e-9)
    card = json.loads((folder / "model" / "regression.json").read_text())
    (tmp_path / "regression.json").write_text(json.dumps({k: v for k, v in card.items() if k != "scale"}))
    with pytest.raises(ConfigError, match="not known of this fit"):
        load_regression(tmp_path).predict(files["south"], 0.8, observation=True)
    (tmp_path / "regression.json").write_text(json.dumps({**card, "scale": -1}))
    with pytest.raises(DataError, match="its scale is '-1'; expected a number above 0"):
        load_regression(tmp_path)


def test_a_model_that_was_changed_is_found_out(saved, tmp_path):
    card = json.loads((saved[0] / "model" / "regression.json").read_text())
    levels = {"variables": {**card["design"]["variables"], "sex": {"kind": "category", "levels": ["male", "female"]}}}
    for change, words in [
        ({"format": 9}, "a regression of format 9"),
        ({"design": {**card["design"], **levels}}, "its design is not that of its study"),
        ({"digest": "0" * 64}, "its design is not that of its study"),
        ({"parameters": card["parameters"][1:]}, "expected 4 finite ones"),
        ({"covariance": "none"}, "not the file of a regression"),
    ]:
        (tmp_path / "regression.json").write_text(json.dumps({**card, **change}))
        with pytest.raises(DataError, match=rf"regression\.json: .*{words}"):
            load_regression(tmp_path)


def test_the_commands_know_a_regression(tmp_path):
    text = fedlap.study.regression_text(
        "wards",
        regressions.MEMBERS,
        [fedlap.study.Column.parse(name, regressions.COLUMNS[name]) for name in ILL],
        {**LOGISTIC, "prior_sd": None},
        ignored=["cost"],
    )
    study = fedlap.study.new_regression(tmp_path / "wards", text)
    assert fedlap.study.read_study(study.folder).digest == study.digest
    path = regressions.write(tmp_path, "west", regressions.hospitals()["west"][[*ILL, "cost"]])
    words = [str(study.path), "--data", str(path), "--name", "west"]
    checked = CliRunner().invoke(app, ["study", "check", *words])
    assert checked.exit_code == 0 and "50 rows for 4 coefficients" in checked.output, checked.output
    explained = CliRunner().invoke(app, ["node", *words, "--explain"])
    assert explained.exit_code == 0, explained.output
    assert "factor.V" in explained.output and "Nothing has been sent." in explained.output
    assert f"{8 * (1 + 4 + 4 + 16)} bytes in each round" in explained.output
    path.write_text(path.read_text().replace("female", "femal"))
    refused = CliRunner().invoke(app, ["study", "check", *words])
    assert refused.exit_code == 1 and re.search(r"column sex: found 'femal'.*did you mean 'female'", refused.output)


def test_what_is_explained_is_what_is_sent(tmp_path):
    study, files = regressions.make(tmp_path, ILL, LOGISTIC)
    _, wire = regressions.run(study, files, tmp_path)
    said = {(item.when, item.name): item.shape for item in wire.site("west").explain()}
    entries = verify(tmp_path / "west" / "audit-west.jsonl")
    for kind, when in [("moments", "once, before the first round"), ("answer", "every round")]:
        sent = next(entry["arrays"] for entry in entries if entry["kind"] == kind)
        shapes = {name.lstrip("."): tuple(json.loads(form.partition(" ")[2])) for name, form in sent.items()}
        assert shapes == {name: shape for (at, name), shape in said.items() if at == when}
