"""The report of a model that predicts: points lie where the cells are, and it says no more than the sites have said."""

import re
from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from fedlap.study.protocol.checkpoint import RoundReport
from fedlap.study.protocol.coordinator import Outcome
from fedlap.study.protocol.metrics import Score
from fedlap.study.report import predictor_page
from pages import Page
from studies import study

HARMFUL = "<script>alert('1')</script>&\"x"
CELLS = [[0.0, 0.6, 30, 16.5, 15], [0.6, 0.8, 40, 28.4, 22], [0.8, 1.0, 30, 27.9, 29]]
CONFIDENCE, RIGHT = [0.55, 0.71, 0.93], [0.5, 0.55, 29 / 30]
LAST = Score(100, 0.66, 0.61, 0.42, 0.089, 3, 0.74, 0.0312, 90, CELLS)
SCORES = [Score(100, 0.5, 0.69), None, Score(80, 0.6, 0.65), LAST]


def outcome(scores=SCORES, **changes):
    """What a run of two sites leaves, one of whom was absent once; the model itself is in no report."""
    members = [("north", "south")] * (len(scores) - 1) + [("north",)]
    history = tuple(
        RoundReport(k, names, (), {}, 1.0, score=score)
        for k, (names, score) in enumerate(zip(members, scores, strict=True), 1)
    )
    made = Outcome("r1", None, None, None, {"north": 250, "south": 1150}, history)
    return replace(made, **changes)


def pictures(page):
    """The elements of each picture, by its title."""
    found, titles = [], [text for text, path in page.texts if path[-2:] == ("svg", "title")]
    for name, attributes, path in page.elements:
        if name == "svg":
            found.append([])
        elif "svg" in path:
            found[-1].append((name, attributes))
    return dict(zip(titles, found, strict=True))


def frames(picture):
    """The places of the corners of its plots: left, right, bottom, top."""
    boxes = [each for name, each in picture if name == "rect" and each["class"] == "frame"]
    corners = [[float(each[key]) for key in ("x", "y", "width", "height")] for each in boxes]
    return [(x, x + width, y + height, y) for x, y, width, height in corners]


def points(picture):
    return np.array([[float(each["cx"]), float(each["cy"])] for name, each in picture if name == "circle"])


# The diagram ----------------------------------------------------------------------------------------------------------


def test_points_and_intervals_lie_where_the_cells_are():
    picture = pictures(Page(predictor_page(study(), outcome())))["Reliability on held-back rows"]
    ((left, right, bottom, top),) = frames(picture)
    across, up = lambda x: left + np.array(x) * (right - left), lambda y: bottom + np.array(y) * (top - bottom)
    np.testing.assert_allclose(points(picture), np.stack([across(CONFIDENCE), up(RIGHT)], 1), atol=0.051)  # 0.1 pixel
    lines = [each for name, each in picture if name == "line" and each["class"] == "whisker"]
    ends = np.array([[float(each[key]) for key in ("x1", "y1", "x2", "y2")] for each in lines])
    low, high = proportion_confint([15, 22, 29], [30, 40, 30], method="wilson")
    expected = np.stack([across(CONFIDENCE), up(low), across(CONFIDENCE), up(high)], 1)
    np.testing.assert_allclose(ends, expected, atol=0.051)
    (diagonal,) = (each for name, each in picture if name == "line" and each["class"] == "zero")
    assert [float(diagonal[key]) for key in ("x1", "y1", "x2", "y2")] == [left, bottom, right, top]


def test_the_table_beside_it_has_the_same_numbers_and_the_caption_tells_of_merged_bins():
    page = Page(predictor_page(study(), outcome()))
    low, high = proportion_confint([15, 22, 29], [30, 40, 30], method="wilson")
    found = page.numbers("Cells of the diagram")
    assert list(found) == ["0.000 to 0.600", "0.600 to 0.800", "0.800 to 1.000"]
    expected = np.stack([[30, 40, 30], CONFIDENCE, RIGHT, low, high], 1)
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-9)
    (caption,) = (text for text, path in page.texts if path[-1:] == ("figcaption",))
    assert caption.startswith("3 cells left of 15 bins: small ones were merged with their neighbours")
    assert "a probability of 0.728 and is the true one for 66 % of" in page.said  # (16.5 + 28.4 + 27.9) / 100
    assert "In 1 of 3 cells the 95 % interval excludes the confidence" in page.said  # 0.71, above 0.693


# The rest of the page -------------------------------------------------------------------------------------------------


def test_scores_and_facts_are_those_of_the_run():
    page = Page(predictor_page(study(), outcome()))
    found = page.numbers("Scores on held-back rows")
    scores = {"accuracy": 0.66, "NLL": 0.61, "Brier score": 0.42, "ECE": 0.089, "AUC": 0.74}
    assert {name: numbers[0] for name, numbers in found.items()} == scores
    assert "of 90 rows; their exact AUC is no further away than 0.031" in page.said
    assert "over 3 of 15 bins" in page.said and "Not known" not in page.said
    assert page.numbers("Sites, and in how many of 4 rounds each has taken part") == {
        "north": [250, 4],
        "south": [1150, 3],
    }
    for said in ("outcome: well and ill", "fedlap (delta = 1.0", "1,400 to train on, 100 held back", study().digest):
        assert said in page.said
    left = {"south": {"after_round": 3, "how": "its factor was divided out of the model"}}
    said = Page(predictor_page(study(), outcome(without=left))).said
    assert "south was left out for good after 3 rounds: its factor was divided out of the model." in said
    assert "1 site to the end, of 2" in said and "250 to train on" in said


def test_rounds_are_drawn_where_they_are_known():
    page = Page(predictor_page(study(), outcome()))
    found = page.numbers("By round")
    assert found["1"] == [2, 100, 0.5, 0.69] and found["2"] == [2, 0, None, None] and found["4"] == [1, 100, 0.66, 0.61]
    picture = pictures(page)["Scores by round"]
    places, rounds = points(picture), np.array([1, 3, 4])
    for (left, right, bottom, top), part, values in zip(
        frames(picture), (places[:3], places[3:]), ([0.5, 0.6, 0.66], [0.69, 0.65, 0.61]), strict=True
    ):
        np.testing.assert_allclose(part[:, 0], left + (rounds - 0.5) / 4 * (right - left), atol=0.051)
        room = 0.08 * (max(values) - min(values))
        shares = (np.array(values) - min(values) + room) / (max(values) - min(values) + 2 * room)
        np.testing.assert_allclose(part[:, 1], bottom + shares * (top - bottom), atol=0.051)
    curves = [each["points"].split() for name, each in picture if name == "polyline"]
    assert [len(each) for each in curves] == [2, 2], "the curve is broken where a round has no score"


@pytest.mark.parametrize(
    "last, known, lacking",
    [
        (Score(100, 0.6, 0.6), ["accuracy", "NLL"], "Not known: Brier score, ECE and AUC."),
        (LAST._replace(auc=None, auc_bound=None, auc_rows=None), ["accuracy", "NLL", "Brier score", "ECE"], "AUC."),
        (Score(0, None, None), None, "Nothing is known of rows held back: a site says nothing of them where"),
        (None, None, "Nothing is known of rows held back"),
    ],
)
def test_what_no_site_has_told_is_said_to_be_unknown(last, known, lacking):
    page = Page(predictor_page(study(), outcome([last])))
    assert lacking in page.said and "nan" not in re.findall(r"[a-z]+", page.said.lower()) and "None" not in page.said
    found = page.numbers("Scores on held-back rows") if known else None
    assert (found and list(found)) == known
    diagram = "Reliability on held-back rows" in pictures(page)
    assert diagram == bool(last and last.reliability) != ("There is no reliability diagram" in page.said)
    assert ("Scores by round" in pictures(page)) == bool(known)


def test_the_page_stands_alone_and_nobody_s_text_becomes_markup():
    harmful = replace(study(target={"classes": [HARMFUL, "ill"]}), name=HARMFUL)
    made = outcome(sizes={HARMFUL: 5, "south": 4}, without={HARMFUL: {"after_round": 1, "how": HARMFUL}})
    text = predictor_page(harmful, made)
    page = Page(text)
    assert not re.search(r"https?://|url\(|@import|<script|javascript:", text)
    assert not {name for name, _, _ in page.elements} & {"script", "link", "img", "iframe", "object", "use"}
    assert all(not key.startswith("on") for _, attributes, _ in page.elements for key in attributes)
    assert page.said.count(HARMFUL) == 6  # title twice, class, site, and twice as left out
    titled = page.within("svg", "title"), page.within("svg", "desc")
    assert titled == ([1, 1], [1, 1]) and set(page.within("table", "caption")) == {1}
    links = [attributes["href"] for name, attributes, _ in page.elements if name == "a"]
    assert links == [f"#{attributes['id']}" for name, attributes, _ in page.elements if name == "h2"]
    assert {attributes.get("scope") for name, attributes, _ in page.elements if name == "th"} == {"col", "row"}
