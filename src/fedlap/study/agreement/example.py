"""The four bundled hospitals as a study: their files as a hospital would keep them, and the study that fits these."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlap.data.heart import CENTRES
from fedlap.data.tables import MISSING, read_table
from fedlap.study.agreement.template import study_text
from fedlap.study.table.columns import Column, Target

# For each column the publisher's position and, for a category, the word for each of the publisher's codes.
SOURCE = {
    "age": (0, None),
    "sex": (1, {0: "female", 1: "male"}),
    "chest_pain": (2, {1: "typical", 2: "atypical", 3: "non-anginal", 4: "asymptomatic"}),
    "resting_blood_pressure": (3, None),
    "cholesterol": (4, None),
    "fasting_blood_sugar_high": (5, {0: "no", 1: "yes"}),
    "resting_ecg": (6, {0: "normal", 1: "st-t-abnormality", 2: "hypertrophy"}),
    "maximum_heart_rate": (7, None),
    "exercise_angina": (8, {0: "no", 1: "yes"}),
    "st_depression": (9, None),
    "diagnosis": (13, {0: "healthy", 1: "ill", 2: "ill", 3: "ill", 4: "ill"}),
}


def _number(name, unit, minimum, maximum):
    return Column(name, "number", unit=unit, minimum=minimum, maximum=maximum, missing="drop")


def _category(name):
    return Column(name, "category", categories=tuple(SOURCE[name][1].values()), missing="drop")


# Cholesterol 0 and blood pressure 0 stand in the published files; a real study would rather refuse them.
COLUMNS = (
    _number("age", "years", 18.0, 110.0),
    _category("sex"),
    _category("chest_pain"),
    _number("resting_blood_pressure", "mmHg", 0.0, 300.0),
    _number("cholesterol", "mg/dl", 0.0, 800.0),
    _category("fasting_blood_sugar_high"),
    _category("resting_ecg"),
    _number("maximum_heart_rate", "beats per minute", 40.0, 250.0),
    _category("exercise_angina"),
    _number("st_depression", "mm", -5.0, 10.0),
)
TARGET = Target("diagnosis", ("healthy", "ill"))


def example_study(members: Sequence[str] = CENTRES, name: str = "heart", **options: Any) -> str:
    """study.toml for the four hospitals; options are those of `study_text`."""
    return study_text(name, members, COLUMNS, TARGET, **options)


def example_files(folder: str | Path) -> dict[str, Path]:
    """One CSV a hospital, with all its patients; a value that was not recorded is an empty cell."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for hospital in CENTRES:
        values, _ = read_table("heart", f"processed.{hospital}.data")
        paths[hospital] = folder / f"{hospital}.csv"
        with open(paths[hospital], "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(SOURCE)
            writer.writerows([_cell(patient[place], names) for place, names in SOURCE.values()] for patient in values)
    return paths


def _cell(text: str, names: dict[int, str] | None) -> str:
    if text == MISSING:
        return ""
    return f"{float(text):g}" if names is None else names[int(float(text))]
