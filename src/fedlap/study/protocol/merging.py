"""From a round's replies to the next model: bounded if the study says so, judged, and each one's part measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedlap.study.protocol.bounding import bounded
from fedlap.study.protocol.influence import influences
from fedlap.study.protocol.judgement import change, found_without, judge
from fedlap.study.protocol.line import ServerLine


class Merged(NamedTuple):
    """The server's state after a round, what its sum has of each member, and who had to be left out of it."""

    server: Any
    summed: dict[str, Any]
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Merging:
    """The server before a round: its state, and what its sum has of each member."""

    line: ServerLine
    server: Any
    summed: dict[str, Any]
    bound: float | None

    def merged(self, replies: Mapping[str, Any]) -> Merged:
        """The model of these replies, whatever it is."""
        if self.bound is not None and replies:
            replies = bounded(self.line, self.server, self.summed, replies, self.bound)
        summed = {**self.summed, **replies}
        return Merged(self.line.run(self.server, summed, replies), summed)

    def judged(self, replies: Mapping[str, Any], source: str) -> Merged:
        """The model of these replies, without those of members who would ruin it; DataError if nobody's absence helps.

        `source` is what the model is called.
        """
        found = found_without(
            tuple(replies),
            lambda names: self.merged({name: replies[name] for name in names}),
            lambda merged: judge(self.line.algorithm, merged.server, source),
            lambda name: change(replies[name], self.summed[name]),
        )
        return found.result._replace(without=found.without)

    def influences(self, merged: Merged, names: Sequence[str]) -> dict[str, float]:
        """Of each who has answered, how far the model would be elsewhere without the answer."""

        def without(name: str) -> Any:
            others = [other for other in names if other != name]
            if not others:
                return self.server
            return self.line.run(self.server, {**merged.summed, name: self.summed[name]}, others)

        return influences(self.line.algorithm, self.server, merged.server, without, names)
