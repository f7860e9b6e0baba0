"""A site's records: its file as the protocol sees it, statistics first, then inputs and labels."""

from pathlib import Path
from typing import Any

from fedlap.study.protocol.terms import Rows
from fedlap.study.table import encoding, table


class FileRecords:
    """The checked rows of one member's file, divided into those to train on and those to report on."""

    def __init__(self, study: Any, member: str, path: str | Path):
        self.study, self.member = study, member
        self.checked = table.check_file(study, path)
        self.train, self.test = self.checked.split(study, member)
        self.statistics()  # what may not leave this site is found before anyone is connected to

    def statistics(self) -> encoding.Statistics:
        """What is pooled over all members."""
        return encoding.statistics(self.study, self.train)

    def encode(self, pooled: encoding.Pooled) -> Rows:
        """Inputs and labels, once the pooled statistics are known."""
        return Rows(*encoding.encode(self.study, self.train, pooled), *encoding.encode(self.study, self.test, pooled))

    def fingerprint(self) -> str:
        """The sha256 of the rows."""
        return self.checked.fingerprint()
