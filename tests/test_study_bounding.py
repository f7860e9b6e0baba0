"""[robust]: whatever one member sends, it moves the model by no more than its bound; honest ones lose nothing."""

import dataclasses
import functools
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sites
import studies
from closeness import same_bits
from fedlap.errors import ConfigError
from fedlap.study.agreement.contract import resolve
from fedlap.study.agreement.example import example_study
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.bounding import alone, bounded
from fedlap.study.protocol.line import ServerLine, length, metric, weights
from fedlap.study.protocol.messages import Reply, decode, encode
from fedlap.study.protocol.refusals import Reason

BOUND = 3.0
LIAR = "birch"


@pytest.fixture(scope="module", params=["fedlap", "fedlap_cov", "pvi", "fedlap_func"])
def round_of(request, tmp_path_factory):
    """A real round: the server's line, its state before, what its sum had of everyone, and everyone's replies."""
    folder = tmp_path_factory.mktemp(request.param)
    terms = sites.make_terms(sites.make_algorithm(request.param))
    sites.make_coordinator(terms, folder).run()
    path = folder / "server" / "checkpoint.npz"
    (old, start), (new, _) = (checkpoint.read_state(each, terms) for each in (checkpoint.previous(path), path))
    by_name = lambda state: dict(zip(terms.members, state.contributions, strict=True))
    return ServerLine(terms, start, terms.members), old.server, by_name(old), by_name(new)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(-3, 30),
    st.sampled_from(["anything", "much precision", "its own, larger", "the largest numbers"]),
)
def test_whatever_one_member_sends_it_moves_the_model_by_no_more_than_its_bound(round_of, seed, power, kind):
    line, server, before, replies = round_of
    rng = np.random.default_rng(seed)
    own, scale = replies[LIAR], 10.0**power

    def lie(leaf):
        if kind == "the largest numbers":
            return jnp.full_like(leaf, 3e38)
        if kind == "its own, larger":
            return leaf * scale
        return jnp.asarray(scale * rng.normal(size=leaf.shape))

    lies = jax.tree.map(lie, own)
    if hasattr(own, "V"):  # no more of precision below zero than a model can have, which is judged elsewhere
        lies = lies._replace(V=jax.tree.map(jnp.abs, lies.V))
    if kind == "much precision" and hasattr(own, "V"):
        lies = lies._replace(V=jax.tree.map(lambda leaf: 0 * leaf + scale, lies.V))
    replies = {**replies, LIAR: lies}
    used = bounded(line, server, before, replies, BOUND)
    model = weights(line.run(server, {**before, **used}, replies))
    without = weights(line.run(server, {**before, **used, LIAR: before[LIAR]}, replies))
    precision = metric(line.algorithm.precision(server))
    honest = {name: reply for name, reply in replies.items() if name != LIAR}
    # The bound, of the others' replies alone: of three members' moves the middle one is at most the others' larger.
    most = BOUND * sorted(alone(line, server, before, honest).values())[(len(replies) - 1) // 2]
    assert np.isfinite(model).all()
    assert length(model - without, precision) <= most * (1 + 1e-9)


def test_honest_replies_are_taken_as_they_are(round_of):
    line, server, before, replies = round_of
    used = bounded(line, server, before, replies, 1e6)
    assert all(used[name] is replies[name] for name in replies)


BOUNDED = dataclasses.replace(sites.make_terms(sites.make_algorithm("fedlap_cov")), bound=BOUND)


def attacked(folder, terms):
    """The model after a run in which birch pulls all weights to 1000 with as much precision."""

    def attack(request, member, data):
        if request.kind != "train" or member != LIAR:
            return data
        reply = decode(data, Reply)
        arrays = {name: array.copy() for name, array in reply.arrays.items()}
        for name in arrays:
            if name.startswith((".v", ".V")):
                arrays[name][...] = 1e9 if name.startswith(".v") else 1e6
        return encode(dataclasses.replace(reply, arrays=arrays))

    return sites.make_coordinator(terms, folder, sites.Loopback(terms, folder, attack)).run()


def test_one_of_three_sets_the_model_at_will_unless_it_is_bounded(tmp_path):
    unbounded = dataclasses.replace(BOUNDED, bound=None)
    honest = weights(sites.simulate(unbounded).server)
    away = lambda outcome: np.abs(weights(outcome.server) - honest).max()
    assert away(attacked(tmp_path / "free", unbounded)) > 900
    outcome = attacked(tmp_path / "bounded", BOUNDED)
    assert away(outcome) < 3
    assert all(LIAR not in report.left_out for report in outcome.history)


def test_a_large_site_of_which_a_part_counts_goes_on_and_still_wants_the_prior(tmp_path):
    """The server's precision then has less than all of the site's own part, and never less than the prior."""
    terms, asked = dataclasses.replace(BOUNDED, bound=1.0), []
    records = functools.partial(sites.FederationRecords, federation=sites.make_federation((7, 400, 9)))

    def crash(request, member, data):
        asked.append(request)
        if (request.kind, request.round, member) == ("train", 1, "ash"):
            raise sites.Crash
        return data

    with pytest.raises(sites.Crash):
        sites.make_coordinator(terms, tmp_path, sites.Loopback(terms, tmp_path, crash, records)).run()
    transport, broadcast = sites.Loopback(terms, tmp_path, records=records), asked[-1].arrays
    for S, refusal in ((0.01, Reason.POLICY), (1.0, "")):
        lower = {name: S * array if name.startswith(".S") else array for name, array in broadcast.items()}
        assert transport.site("birch").answer(dataclasses.replace(asked[-1], arrays=lower)).refusal == refusal
    outcome = sites.make_coordinator(terms, tmp_path, transport).run()
    assert [report.absent for report in outcome.history] == [(), (), ()]


def test_a_bounded_run_goes_on_from_its_checkpoint_in_every_bit(tmp_path):
    """What counts of a reply is on disk beside the reply, from which a lost state is restored."""
    terms = dataclasses.replace(BOUNDED, bound=1.0)  # which takes from honest replies too
    whole = sites.make_coordinator(terms, tmp_path / "whole").run()
    state, _ = checkpoint.read_state(tmp_path / "whole" / "server" / "checkpoint.npz", terms)
    assert not same_bits(state.used, state.contributions)
    crashed = []

    def crash(request, member, data):
        if request.round not in crashed:
            crashed.append(request.round)
            raise sites.Crash
        return data

    for _ in range(6):
        try:
            transport = sites.Loopback(terms, tmp_path / "crashed", crash)
            outcome = sites.make_coordinator(terms, tmp_path / "crashed", transport).run()
        except sites.Crash:
            continue
    assert len(crashed) == 5 and same_bits(outcome.server, whole.server)


def test_a_bound_is_part_of_the_study_only_if_it_is_said():
    example = resolve(tomllib.loads(example_study() + '\n[server_solver]\nname = "descent"\n'), "study.toml")
    assert example.digest.startswith("d7418460e962"), "the digest of before there were bounds, with its usual solver"
    plain, robust = studies.study(), studies.study(robust={"bound": 3})
    assert plain.bound is None and "robust" not in plain.shared()
    assert robust.bound == 3.0 and robust.digest != plain.digest
    assert resolve(robust.shared(), "card.json").digest == robust.digest
    assert studies.study(robust={"bound": 3.0}).digest == robust.digest


@pytest.mark.parametrize(
    "sections, words",
    [
        ({"robust": {"bound": 0.5}}, "robust.bound is 0.5; expected a number from 1 to 1e"),
        ({"robust": {"bound": "3"}}, "robust.bound is '3'; expected a number"),
        ({"robust": {"bound": True}}, "robust.bound is True; expected a number"),
        ({"robust": {}}, "robust.bound is missing"),
        ({"robust": {"bonud": 3}}, "did you mean 'bound'"),
        (
            {"robust": {"bound": 3}, "algorithm": {"name": "fedavg", "delta": None}},
            "bounds how far a factor moves in a round, and fedavg sends none; expected an algorithm that does",
        ),
    ],
)
def test_a_bound_that_cannot_be_is_refused(sections, words):
    with pytest.raises(ConfigError) as caught:
        studies.study(**sections)
    assert words in str(caught.value)
