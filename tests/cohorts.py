"""A small cohort at three hospitals, as one frame and as frames of several libraries."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa


def cohort():
    """Ninety rows; the stage IV and the drug "c" are at one hospital only."""
    rng = np.random.default_rng(7)
    hospital = np.repeat(["east", "north", "west"], [40, 30, 20])
    drug = rng.choice(["a", "b"], 90)
    drug[hospital == "west"] = rng.choice(["b", "c"], 20)
    stage = rng.integers(1, 4, 90)
    stage[hospital == "north"] += 1
    frame = pd.DataFrame(
        {
            "hospital": hospital,
            "outcome": rng.normal(size=90),
            "ill": rng.integers(0, 2, 90),
            "age": rng.gamma(9, 6, 90).round(1),
            "visits": rng.integers(0, 9, 90),
            "sex": rng.choice(["female", "male"], 90),
            "smoker": rng.random(90) < 0.3,
            "drug": drug,
            "stage": stage,
            "blood pressure": rng.normal(130, 15, 90),
            "years": rng.uniform(0.5, 4, 90),
        }
    )
    frame.loc[frame["drug"] == "c", "sex"] = "male"
    return frame


def hospitals(frame):
    """The frames of the hospitals, each with an index of its own."""
    return {name: part.reset_index(drop=True) for name, part in frame.groupby("hospital")}


def as_dictionary(frame):
    return {name: frame[name].to_numpy() for name in frame}


KINDS = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": pa.Table.from_pandas,
    "dict": as_dictionary,
}


def drawn_hospitals(rng, sizes):
    """Frames of so many rows each, with an outcome for every family."""
    names = ["north", "south", "west", "east", "centre", "coast"]
    return {names[k]: _drawn(rng, size) for k, size in enumerate(sizes)}


def _drawn(rng, rows):
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, rows),
            "sex": rng.choice(["female", "male"], rows),
            "smoker": rng.integers(0, 2, rows),
            "copies": rng.integers(1, 4, rows),
            "shift": rng.normal(size=rows) / 4,
            "years": rng.uniform(0.5, 4, rows),
            "treated": rng.integers(1, 9, rows),
        }
    )
    risk = 0.04 * (frame["age"] - 60) + 0.5 * (frame["sex"] == "male") - 0.3 * frame["smoker"]
    chance = 1 / (1 + np.exp(-risk))
    frame["ill"] = (rng.random(rows) < chance).astype(int)
    frame["pressure"] = 120 + 15 * risk + rng.normal(0, 12, rows)
    frame["visits"] = rng.poisson(np.exp(risk))
    frame["claims"] = rng.negative_binomial(1.5, 1.5 / (1.5 + 2 * np.exp(risk)))
    frame["cost"] = rng.gamma(2, 900 * np.exp(risk))
    frame["cured"] = rng.binomial(frame["treated"], chance)
    frame["ward"] = np.where(rng.random(rows) < chance / 2, "surgery", rng.choice(["heart", "lung"], rows))
    return frame
