"""A server that asks one real site whatever it likes, for the tests of what a site allows."""

import numpy as np

from fedlap.study.agreement.contract import Study
from fedlap.study.agreement.example import example_files, example_study
from fedlap.study.protocol.contents import Beginning
from fedlap.study.protocol.messages import Reply, Request, decode, encode, pack
from fedlap.study.protocol.records import FileRecords
from fedlap.study.protocol.site import Site
from fedlap.study.protocol.terms import Terms
from fedlap.study.table.encoding import features, numbers, pool

ROUNDS = 20
AGE = 0  # the place of the age among the inputs


def hospitals(folder, rounds=ROUNDS, quorum=3, **algorithm):
    """The study of the four bundled hospitals, and their files; one of them may be away in a round."""
    settings = {"name": "fedlap_cov", "delta": 1.0, **algorithm}
    folder.mkdir(parents=True, exist_ok=True)
    shown = settings["name"] == "fedlap_func"
    text = example_study(rounds=rounds, algorithm=settings, share_points=shown, quorum=quorum)
    (folder / "study.toml").write_text(text)
    return Study.read(folder), example_files(folder / "data")


class Server:
    """It has been told the truth by everyone, and asks one member by itself."""

    def __init__(self, study, files, member, folder, rules=None, run="r1"):
        self.study, self.files, self.member, self.folder, self.run = study, files, member, folder, run
        self.terms, self.rules, self.said = Terms.of(study), rules, []
        records = {each.name: FileRecords(study, each.name, files[each.name]) for each in study.members}
        self.own = records[member]
        told = {name: each.statistics() for name, each in records.items()}
        sizes = np.array([int(each.rows) for each in told.values()], np.int64)
        self.beginning = Beginning(pool(told.values()), sizes, None)
        self.rows = self.own.encode(self.beginning.pooled)
        self._site = None

    def site(self, anew=False):
        """The member; `anew` for one that has just been started."""
        if self._site is None or anew:
            path, member = self.files[self.member], self.member
            self._site = Site.of(self.study, member, path, self.folder, self.said.append, self.rules)
        return self._site

    def ask(self, kind, record=None, round=-1, accepted=-1, run=None):
        """The reply, over the wire and back."""
        arrays = record if isinstance(record, dict) else pack(record)
        request = Request(kind, self.study.digest, run or self.run, round, accepted, arrays)
        return decode(encode(self.site().answer(decode(encode(request), Request))), Reply)

    def begin(self, run=None, **pooled):
        """Begin, with some of the pooled statistics as this server likes them."""
        record = self.beginning._replace(pooled=self.beginning.pooled._replace(**pooled))
        return self.ask("begin", record, run=run)

    def broadcast(self, weight=None, bias=None, S=None):
        """The study's own first broadcast, with a model and a precision as this server likes them."""
        start = self.terms.server_start(self.beginning.sizes, None)
        arrays = pack(self.terms.algorithm.broadcast(start.first.server))
        for name, array in arrays.items():
            if ".S" in name:
                arrays[name] = array if S is None else np.full_like(array, S)
            elif "weight" in name and weight is not None:
                arrays[name] = np.asarray(weight, array.dtype)
            elif "bias" in name and bias is not None:
                arrays[name] = np.asarray(bias, array.dtype)
        return arrays

    def by_age(self, years, steep, **options):
        """A model that calls everyone ill who is older, and how sure it is of a year."""
        pooled = self.beginning.pooled
        at = [column.name for column in numbers(self.study)].index("age")
        slope = steep * float(pooled.deviations[at])
        weight = np.zeros((2, len(features(self.study))))
        weight[:, AGE] = -slope / 2, slope / 2
        shift = slope * (years - float(pooled.means[at])) / float(pooled.deviations[at])
        return self.broadcast(weight, np.array([shift / 2, -shift / 2]), **options)
