"""A site's file as the protocol sees it: statistics first, then inputs and labels; and how statistics are pooled."""

import numpy as np

from fedlap.study.protocol.messages import check
from fedlap.study.protocol.terms import Rows
from fedlap.study.table import encoding, table


class FileRecords:
    """The checked rows of one member's file, divided into those to train on and those to report on."""

    def __init__(self, study, member, path):
        self.study, self.member = study, member
        self.checked = table.check(study, path)
        self.train, self.test = self.checked.split(study, member)
        self.statistics()  # what may not leave this site is found before anyone is connected to

    def statistics(self):
        return encoding.statistics(self.study, self.train)

    def pool(self, statistics):
        return pool(self.study, dict(enumerate(statistics)))

    def encode(self, pooled):
        count = len(encoding.numbers(self.study))
        shapes = {"rows": (), "counts": (count,), "means": (count,), "deviations": (count,)}
        check(pooled, {name: (np.float64, shape) for name, shape in shapes.items()}, "the pooled statistics")
        pooled = encoding.Pooled(**pooled)
        return Rows(*encoding.encode(self.study, self.train, pooled), *encoding.encode(self.study, self.test, pooled))

    def fingerprint(self):
        return self.checked.fingerprint()


def pool(study, statistics):
    """Means and deviations over all members, from what each has sent, in the members' order."""
    checked = [encoding.checked_statistics(study, str(who), given) for who, given in statistics.items()]
    return {name: np.asarray(array) for name, array in encoding.pool(checked)._asdict().items()}
