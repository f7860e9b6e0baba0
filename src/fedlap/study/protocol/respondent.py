"""A member that answers requests: every reply is recorded before it leaves, and a refusal has a fixed reason."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedlap.errors import FedlapError
from fedlap.files import in_words
from fedlap.study.protocol import audit, guard
from fedlap.study.protocol.messages import Arrays, Recorded, Reply, Request, size
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
        self.study, self.member, self.folder = study, member, Path(folder)
        self.rules, self.permits = rules, Permits(folder, study, member)
        self.restore = False  # whether its operator wants back from the server what the state folder has lost
        self._log = log
        self._recorded: Recorded | None = None  # the last line that this process has added to the audit log

    @property
    def audit_log(self) -> Path:
        """The file that records everything this site has sent."""
        return self.folder / f"audit-{self.member}.jsonl"

    def answer(self, request: Request) -> Reply:
        """The reply to a request; if it cannot be answered, a fixed reason, and in the log what is wrong."""
        began = time.perf_counter()
        try:
            self._check_folder()
            reply, result = self._made(request)
            self._recorded = audit.append(self.audit_log, self.member, request, reply)
            reply = replace(reply, recorded=self._recorded)
        except (Refusal, OSError) as error:  # what cannot be recorded does not leave
            reply, result = self._refusal(request, error)
        self.log(f"{self.step(request)}, {time.perf_counter() - began:.2f} s: {result}")
        return reply

    def log(self, line: str) -> None:
        """Tell whoever sits here; a window or a file that takes no more words is no reason to end."""
        with suppress(OSError):
            self._log(line)

    def _made(self, request: Request) -> tuple[Reply, str]:
        """The reply to a request, and in words what became of it."""
        try:
            facts, arrays = self._answer(request)
        except (FedlapError, OSError) as error:
            return self._refusal(request, error)
        return Reply(self.member, request.digest, "", facts, arrays), f"{size(arrays):,} bytes to send"

    def _refusal(self, request: Request, error: FedlapError | OSError) -> tuple[Reply, str]:
        if isinstance(error, OSError):
            reason, words = Reason.DISK, f"{in_words(error)}; it then goes on by itself"
        else:
            reason, words = error.reason if isinstance(error, Refusal) else Reason.OTHER, str(error)
        return Reply(self.member, request.digest, reason.value), f"refused: {words}"

    def _check_folder(self) -> None:
        """That the folder is still there: in an empty one, as of a disk that is gone, all would begin anew."""
        if self._recorded is not None and not audit.holds(self.audit_log, self._recorded):
            raise Refusal(
                Reason.VANISHED,
                f"{self.audit_log}: its line {self._recorded.line}, which this node wrote, is gone or changed; bring "
                f"{self.folder} back as it was, or start `fedlap node` again to go on with what is there",
            )

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
        try:
            return methods[request.kind](request)
        except Refusal as refusal:
            if self.restore and refusal.reason in (Reason.LOST, Reason.GAP):
                raise Refusal(Reason.RESTORE, f"{refusal}; the server is asked for it (--restore)") from refusal
            raise
