"""A member that answers requests: every reply is recorded before it leaves, and a refusal has a fixed reason."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedlap.errors import FedlapError
from fedlap.study.protocol import audit, guard
from fedlap.study.protocol.messages import Arrays, Reply, Request, size
from fedlap.study.protocol.permits import Permits, SiteRules
from fedlap.study.protocol.refusals import Reason, Refusal


class Sent(NamedTuple):
    """One thing that leaves a site, for `--explain`."""

    when: str
    name: str
    shape: tuple[int, ...]
    bytes: int


Content = tuple[dict[str, Any], Arrays]  # the facts and the arrays of a reply
Method = Callable[[Request], Content]


class Respondent:
    """One member and its folder. What it computes is said by the kind of study that it takes part in."""

    def __init__(
        self, study: str, member: str, folder: str | Path, rules: SiteRules, log: Callable[[str], None]
    ) -> None:
        self.study, self.member, self.folder, self.log = study, member, Path(folder), log
        self.rules, self.permits = rules, Permits(folder, study, member)

    @property
    def audit_log(self) -> Path:
        """The file that records everything this site has sent."""
        return self.folder / f"audit-{self.member}.jsonl"

    def answer(self, request: Request) -> Reply:
        """The reply to a request; if it cannot be answered, a fixed reason, and in the log what is wrong."""
        began = time.perf_counter()
        try:
            facts, arrays = self._answer(request)
            reply, result = Reply(self.member, request.digest, "", facts, arrays), f"{size(arrays):,} bytes to send"
        except FedlapError as error:
            reason = error.reason if isinstance(error, Refusal) else Reason.OTHER
            reply, result = Reply(self.member, request.digest, reason.value), f"refused: {error}"
        audit.append(self.audit_log, self.member, request, reply)
        self.log(f"{self.step(request)}: {result} after {time.perf_counter() - began:.2f} s")
        return reply

    def explain(self) -> list[Sent]:
        """Everything this site would send."""
        raise NotImplementedError

    def methods(self) -> Mapping[str, Method]:
        """What is done with a request, by its kind."""
        raise NotImplementedError

    def permit(self, request: Request) -> None:
        """Refuse a run more than this site begins; one that its operator has agreed to is recorded as such."""
        agreed = guard.check_run(self.rules, self.permits, request.run)
        if agreed is not None and request.kind == "begin":
            facts = {"runs": agreed.runs, "agreed": agreed.time}
            audit.append(
                self.audit_log,
                self.member,
                Request("agree", self.study, request.run),
                Reply(self.member, "", "", facts),
            )

    def step(self, request: Request) -> str:
        """What the log calls a request."""
        return request.kind

    def _answer(self, request: Request) -> Content:
        if request.study != self.study:
            raise Refusal(
                Reason.STUDY,
                f"the server's study file has the digest {request.study[:12]}, this site's {self.study[:12]}; "
                "expected the same study.toml at the server and at every member",
            )
        methods = self.methods()
        if request.kind not in methods or not (request.run.isalnum() and len(request.run) <= 64):
            kinds = ", ".join(methods)
            raise Refusal(Reason.REQUEST, f"a request of kind {request.kind!r}; expected one of {kinds}")
        return methods[request.kind](request)
