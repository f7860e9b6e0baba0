"""A dishonest or broken member of a regression: what no rows can have said is refused by name."""

import dataclasses

import numpy as np
import pytest

import regression_studies as studies
from fedlap.study.protocol.messages import Reply, decode, encode

LOGISTIC = ("age", "sex", "ill"), {"formula": "ill ~ age + sex", "family": "binomial", "robust": True}
COX = ("age", "sex", "time", "died"), {"formula": "age + sex", "duration": "time", "event": "died"}


def set_to(name, value, place=0):
    """A change of one number of an array of a reply."""

    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].flat[place] = value

    return change


def scaled(name, factor):
    def change(arrays):
        arrays[name] = arrays[name] * factor

    return change


IMPOSSIBLE = {
    "more rows than it has": (LOGISTIC, "moments", set_to(".rows", 1e6), "1e+06 rows of 70 complete ones"),
    "moments of other rows": (LOGISTIC, "moments", set_to(".columns.rows", 7.0), "moments of 7 rows; it has 70"),
    "a mean age of 1e50": (LOGISTIC, "moments", set_to(".columns.mean", 1e50, 1), "column age: no numbers from 0 to"),
    "a share of 200 %": (LOGISTIC, "moments", set_to(".columns.mean", 2.0, 2), "[T.male]: no numbers from 0 to 1 have"),
    "a spread beyond the range": (LOGISTIC, "moments", set_to(".columns.products", 1e9, 4), "spread as far"),
    "an intercept that is not 1": (LOGISTIC, "moments", set_to(".columns.mean", 3.0, 0), "from 1 to 1 have the mean 3"),
    "products of no rows": (COX, "moments", set_to(".columns.products", -1.0, 0), "no rows have these products"),
    "a loss below zero": (LOGISTIC, "answer", set_to(".loss", -5.0), "a loss of -5; of probabilities none"),
    "a curvature below zero": (LOGISTIC, "answer", scaled(".factor.V", -1.0), "a diagonal below zero"),
    "a curvature that is none": (COX, "answer", set_to(".factor.V", 1e9, 1), "no matrix of a curvature"),
    "more pairs than there are": (COX, "closing", set_to(".concordant", 10**9), "of 1"),
    "a deviance below zero": (LOGISTIC, "closing", set_to(".deviance", -1.0), "none is below 0"),
    "information below zero": (
        LOGISTIC,
        "closing",
        scaled(".information", -1.0),
        "information has a diagonal below",
    ),
    "a robust part below zero": (
        LOGISTIC,
        "meat",
        scaled(".meat", -1.0),
        "covariance has a diagonal below zero",
    ),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_cannot_be_is_refused_by_name_and_asked_for_again(kind, tmp_path):
    (used, regression), when, change, words = IMPOSSIBLE[kind]
    study, files = studies.make(tmp_path, used, regression)
    lies, events = [], []

    def fault(request, member, data):
        if (request.kind, member) != (when, "south") or lies:
            return data
        reply = decode(data, Reply)
        arrays = dict(reply.arrays)
        change(arrays)
        lies.append(request)
        return encode(dataclasses.replace(reply, arrays=arrays))

    wire = studies.Wire(study, files, tmp_path, fault)
    outcome = studies.coordinator(study, wire, tmp_path, events.append).run()
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.member == "south" and refused.note.startswith("south") and words in refused.note, refused.note
    assert outcome.fit.converged and np.isfinite(outcome.fit.llf)


def test_who_has_no_number_for_its_loss_is_named(tmp_path):
    study, files = studies.make(tmp_path, *LOGISTIC)
    events = []

    def fault(request, member, data):
        if (request.kind, request.round, member) != ("answer", 1, "west"):
            return data
        reply = decode(data, Reply)
        return encode(dataclasses.replace(reply, arrays={**reply.arrays, ".loss": np.array(np.inf)}))

    outcome = studies.coordinator(study, studies.Wire(study, files, tmp_path, fault), tmp_path, events.append).run()
    (noted,) = [event for event in events if event.kind == "noted"]
    assert noted.member == "west" and "no number for its loss" in noted.note and outcome.fit.converged
