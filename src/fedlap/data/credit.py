"""UCI Credit Approval, divided among ten or two clients as in the paper."""

import numpy as np

from fedlap.data.federation import Federation, default_names
from fedlap.data.partition import label_rate
from fedlap.data.tables import MISSING, indicators, read_table, standardise
from fedlap.data.validation import Seed, generator
from fedlap.errors import unknown

PRESETS = ("paper", "standard")

# Rejected and approved applications of each client, out of 285 and 236 in the training set.
SPLITS = {
    "heterogeneous": label_rate(counts=((34, 2),) * 5 + ((22, 45),) * 5),
    "homogeneous": label_rate(counts=((28, 24),) * 6 + ((28, 23),) * 4),
    "two_clients": label_rate(counts=((142, 118),) * 2),
}

_CATEGORICAL = (0, 3, 4, 5, 6, 8, 9, 11, 12)
_NUMERIC = (1, 2, 7, 10, 13, 14)
_LABEL = 15


def credit(preset: str = "standard", split: str = "heterogeneous", seed: Seed = 0) -> Federation:
    """UCI Credit Approval, 521 training and 131 test records of 42 features: was an application approved?

    The publisher's first record is left out in both presets: the paper's authors lost it by reading it as a
    header, and every published number is without it. With it, no table could be compared with theirs, nor the
    two presets with each other. Records with a missing value are left out too. The test set never changes.

    Args:
        preset: "paper" leaves numeric columns as recorded, up to 100,000, which the paper's numbers need;
            "standard" gives them mean 0 and deviation 1 over the training records.
        split: "heterogeneous" (5 clients of 36 records with 2 approved, 5 of 67 with 45), "homogeneous" (10
            clients of 51 or 52) or "two_clients" (2 of 260). A few training records belong to no client.
        seed: which records of a class each client gets.
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    values, is_test = read_table("credit", "crx.data")
    used = ~(values == MISSING).any(axis=1)
    used[0] = False
    values, is_test = values[used], is_test[used]
    # Levels of all records, test records too: a level that training lacks still has its column.
    columns = [values[:, column] for column in _CATEGORICAL]
    flags = np.hstack([indicators(column, drop_first=len(np.unique(column)) == 2) for column in columns])
    amounts = values[:, _NUMERIC].astype(np.float64)
    if preset == "standard":
        amounts[~is_test], amounts[is_test] = standardise(amounts[~is_test], amounts[is_test])
    inputs = np.hstack([flags, amounts])
    labels = (values[:, _LABEL] == "+").astype(np.int32)
    partition = SPLITS[split]
    clients = len(partition.counts)
    return Federation(
        name="credit",
        clients=tuple(default_names(clients)),
        inputs=inputs[~is_test],
        labels=labels[~is_test],
        rows=partition(labels[~is_test], clients, generator(seed)),
        test_inputs=inputs[is_test],
        test_labels=labels[is_test],
        classes=2,
    )
