"""UCI Heart Disease: four hospitals, each a client, prepared by the rules of the FLamby benchmark."""

import numpy as np

from fedlap.data.federation import Federation
from fedlap.data.tables import MISSING, indicators, read_table, standardise
from fedlap.errors import unknown

PRESETS = ("paper", "standard")
CENTRES = ("cleveland", "hungarian", "switzerland", "va")

# slope, ca and thal: three of the hospitals hardly recorded them.
_DROPPED = (10, 11, 12)
_NUMERIC = (0, 1, 3, 4, 5, 7, 8, 9)
_CATEGORICAL = (2, 6)  # chest pain, resting electrocardiogram


def heart(preset: str = "standard") -> Federation:
    """UCI Heart Disease, four hospitals with 199, 172, 30 and 85 training patients, 13 features: is a heart ill?

    Columns slope, ca and thal are dropped, then patients with a missing value. The test set is the 254 test
    patients of all hospitals together. All of Switzerland's training patients are ill.

    Preset "paper" leaves the features as recorded, which the paper's numbers need. "standard" gives them mean 0
    and deviation 1 over all hospitals' training patients, for which a hospital need only tell its count, sums and
    sums of squares. (Each hospital scaling by its own patients would erase that they differ, and costs six
    points of accuracy.)
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    tables, tests, centres = [], [], []
    for number, centre in enumerate(CENTRES):
        values, is_test = read_table("heart", f"processed.{centre}.data")
        values = np.delete(values, _DROPPED, axis=1)
        complete = ~(values == MISSING).any(axis=1)
        tables.append(values[complete].astype(np.float64))
        tests.append(is_test[complete])
        centres.append(np.full(complete.sum(), number))
    table, is_test, centre = np.concatenate(tables), np.concatenate(tests), np.concatenate(centres)
    # Levels are those of all hospitals together, so that columns mean the same everywhere.
    inputs = np.hstack(
        [table[:, _NUMERIC], *(indicators(table[:, column], drop_first=True) for column in _CATEGORICAL)]
    )
    labels = (table[:, -1] > 0).astype(np.int32)
    if preset == "standard":
        inputs[~is_test], inputs[is_test] = standardise(inputs[~is_test], inputs[is_test])
    return Federation(
        name="heart",
        clients=CENTRES,
        inputs=inputs[~is_test],
        labels=labels[~is_test],
        rows=tuple(np.flatnonzero(centre[~is_test] == number) for number in range(len(CENTRES))),
        test_inputs=inputs[is_test],
        test_labels=labels[is_test],
        classes=2,
    )
