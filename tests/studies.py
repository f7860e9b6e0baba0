"""A small study and a file that fits it, for the tests of the data contract."""

import tomllib

from fedlap.study.agreement.contract import resolve

SMALL = """
[study]
name = "small"
members = ["north", "south"]
minimum_rows = 2
test_fraction = 0.0
ignored_columns = ["patient_id"]
[columns]
age = { kind = "number", unit = "years", minimum = 0, maximum = 120 }
dose = { kind = "number", unit = "mg", missing = "mean" }
ward = { kind = "category", categories = ["surgery", "medicine", "missing"], missing = "category" }
sex = { kind = "category", categories = ["female", "male"], missing = "drop" }
[target]
name = "outcome"
classes = ["well", "ill"]
missing = "drop"
[model]
name = "logistic"
[algorithm]
name = "fedlap"
delta = 1.0
"""

FILE = """\
age,dose,ward,sex,outcome
50,1.5,surgery,male,ill
61,2.5,medicine,female,well
72,0.5,surgery,female,ill
33,3,,male,well
"""


def table(**sections):
    """The small study's settings, with some keys changed; None takes a key away."""
    settings = tomllib.loads(SMALL)
    for section, changes in sections.items():
        old = settings.setdefault(section, {})
        old.update(changes)
        for key in [key for key, value in changes.items() if value is None]:
            del old[key]
    return settings


def study(**sections):
    return resolve(table(**sections), "study.toml")


def write(folder, text, name="patients.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
