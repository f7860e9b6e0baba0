"""A site's records: its file as the protocol sees it, statistics first, then inputs and labels."""

from pathlib import Path

from fedlap.study.protocol.terms import Rows
from fedlap.study.table import encoding, feasible, table
from fedlap.study.table.requirements import Requirements


class FileRecords:
    """The checked rows of one member's file, divided into those to train on and those to report on."""

    def __init__(self, study: Requirements, member: str, path: str | Path) -> None:
        self.study, self.member = study, member
        self.checked = table.check_file(study, path)
        self.train, self.test = self.checked.split(study, member)
        self.statistics()  # what may not leave this site is found before anyone is connected to

    def statistics(self) -> encoding.Statistics:
        """What is pooled over all members."""
        return encoding.statistics(self.study, self.train)

    def encode(self, pooled: encoding.Pooled) -> Rows:
        """Inputs and labels, once the pooled statistics are known."""
        (inputs, _), (test_inputs, _) = (encoding.encode(self.study, part, pooled) for part in (self.train, self.test))
        return Rows(inputs, self.train.known_labels(), test_inputs, self.test.known_labels())

    def check_pooled(self, pooled: encoding.Pooled) -> None:
        """DataError unless these rows can be among those that the statistics are of."""
        feasible.check_pooled(self.study, self.statistics(), pooled)

    def fingerprint(self) -> str:
        """The sha256 of the rows."""
        return self.checked.fingerprint()
