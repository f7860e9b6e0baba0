"""The coordinator's connection to the SuperLink: one Flower run, whose ServerApp is this very process.

Flower would start a ServerApp as a new process from a package that travels with the run. Here the package is
empty, the SuperLink starts nothing (`--isolation process`), and this process takes the task itself. Nor does it use
Flower's Grid, which fetches all replies at once and waits for the slowest.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID, Status
from flwr.common.serde import fab_to_proto, message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, inflate_object_from_contents, push_objects
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from fedlap.flower.gate import REPLY, SECRET
from fedlap.flower.server import local_address
from fedlap.study.agreement.contract import CommonStudy

PROJECT = b"""[project]
name = "fedlap-study"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]
[tool.flwr.app]
publisher = "fedlap"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "fedlap_study:app"
clientapp = "fedlap_study:app"
[tool.flwr.app.config]
"""
FILES = {
    "pyproject.toml": PROJECT,
    "LICENSE": b"MIT\n",
    "fedlap_study/__init__.py": b'"""Empty: server and sites run the fedlap that is installed there."""\n',
}


class _Coordinator:
    """Adds to every request what the gate asks of the coordinator: its secret, and how many bytes a reply may have."""

    def __init__(self, secret: str, reply: int | None = None) -> None:
        self.headers = {SECRET: secret} | ({} if reply is None else {REPLY: str(reply)})

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers.update(self.headers)
        return call_next(context)


def control_client(study: CommonStudy, secret: str) -> ControlHttpClient:
    """A client of the SuperLink's Control API, on the server itself."""
    return ControlHttpClient.from_server_address(
        local_address(study),
        insecure=False,
        root_certificates=(study.folder / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr"), _Coordinator(secret)],
    )


class Link:
    """One Flower run. Messages of an earlier one, should there be any, are never seen in it."""

    def __init__(self, study: CommonStudy, secret: str, reply: int) -> None:
        self.study, self.coordinator = study, _Coordinator(secret, reply)
        self.control = control_client(study, secret)
        self._stop_others()
        package = build_fab_from_files(FILES)[0]
        fab = Fab(hashlib.sha256(package).hexdigest(), package, {})
        self.run_id = self.control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
        self.client = self._runtime("flwr-serverapp", RuntimeTokenHttpInterceptor(token=self._token(secret)))
        task = self.client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self.node = Node(node_id=SUPERLINK_NODE_ID)
        self._over = threading.Event()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def _stop_others(self) -> None:
        """End the runs that an earlier coordinator has left behind, and delete what waits in them."""
        for run in self.control.ListRuns(ListRunsRequest()).run_dict.values():
            if run.status.status != Status.FINISHED:
                self.control.StopRun(StopRunRequest(run_id=run.run_id))

    def _runtime(self, component: str, interceptor: Any) -> RuntimeHttpClient:
        """A client of the SuperLink's Runtime API."""
        return RuntimeHttpClient.from_server_address(
            server_address=local_address(self.study),
            insecure=False,
            root_certificates=(self.study.folder / "ca.crt").read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name=component), interceptor, self.coordinator],
        )

    def _token(self, secret: str) -> str:
        """The token of this run's task."""
        superexec = SuperExecAuthHttpInterceptor(
            master_secret=secret.encode(), protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        with self._runtime("SuperExec", superexec) as runtime:
            while True:
                acquired = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if acquired.token and acquired.task.run_id == self.run_id:
                    return acquired.token
                time.sleep(0.1)

    def _heartbeat(self) -> None:
        while not self._over.wait(5):
            try:
                self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError:
                continue  # whoever exchanges messages will notice and connect again

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that are connected."""
        return self.client.GetNodes(GetNodesRequest()).nodes

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages; their identifiers, "" of one that was not taken."""
        with no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
            parts = {name: part for message in messages for name, part in get_all_nested_objects(message).items()}
            request = PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(message)) for message in messages],
                message_object_trees=[get_object_tree(message) for message in messages],
            )
            response = self.client.PushMessages(request)
            push = make_push_object_fn_protobuf(self.client.PushObject, self.node, self.run_id, response.session_id)
            try:
                push_objects(parts, push_object_fn=push, object_ids_to_push=set(response.objects_to_push))
            except ObjectPushError:  # too late: the SuperLink has forgotten what it was announced
                return [""] * len(messages)
        return list(response.message_ids)

    def announced(self, identifiers: Iterable[str]) -> list[tuple[str, ObjectTree]]:
        """The replies to these messages that are new: of each, which message it answers, and what parts it has."""
        response = self.client.PullMessages(PullAppMessagesRequest(message_ids=identifiers))
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        return [(message.metadata.reply_to_message_id, tree) for message, tree in pairs]

    def part(self, identifier: str) -> bytes | None:
        """A part of a reply, if it has been uploaded; LookupError if it will not come any more."""
        request = PullObjectRequest(node=self.node, run_id=self.run_id, object_id=identifier)
        response = self.client.PullObject(request)
        if not response.object_found:
            raise LookupError(identifier)
        return response.object_content if response.object_available else None

    def confirm(self, identifier: str) -> None:
        """Have the SuperLink delete a reply that is here."""
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run_id, message_object_id=identifier)
        )

    def close(self) -> None:
        """End the run."""
        self._over.set()
        try:
            self.control.StopRun(StopRunRequest(run_id=self.run_id))
        except httpx.HTTPError:
            pass  # the SuperLink is gone, and erases what it has when it comes back
        self.control.close()
        self.client.close()


def identifiers(tree: ObjectTree) -> list[str]:
    """Of all parts of a message, itself first."""
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def assembled(identifier: str, parts: dict[str, bytes]) -> Message:
    """A message from its parts; ValueError where they do not make one."""
    try:
        message = inflate_object_from_contents(identifier, parts)
    except Exception as error:  # what a member has sent, read by code of Flower's that trusts it
        raise ValueError(type(error).__name__) from error
    if not isinstance(message, Message):
        raise ValueError(type(message).__name__)
    return message
