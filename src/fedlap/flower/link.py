"""The coordinator's connection to the SuperLink: one Flower run, whose ServerApp is this very process.

Flower would start a ServerApp as a new process from a package that travels with the run. Here the package is
empty, the SuperLink starts nothing (`--isolation process`), and this process takes the task itself.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedlap.flower.gate import HEADER
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


class _Secret:
    """Adds the coordinator's secret to every request, which the gate asks for."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[HEADER] = self.secret
        return call_next(context)


class _Once:
    """Instead of Flower's retries, which end the process when a token has lapsed: `GridTransport` connects again."""

    def invoke(self, target: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return target(*arguments, **options)


def control_client(study: CommonStudy, secret: str) -> ControlHttpClient:
    """A client of the SuperLink's Control API, on the server itself."""
    return ControlHttpClient.from_server_address(
        local_address(study),
        insecure=False,
        root_certificates=(study.folder / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr"), _Secret(secret)],
    )


class Link:
    """One Flower run. Messages of an earlier one, should there be any, are never seen in it."""

    def __init__(self, study: CommonStudy, secret: str) -> None:
        address, certificate = local_address(study), (study.folder / "ca.crt").read_bytes()
        self.control = control_client(study, secret)
        package = build_fab_from_files(FILES)[0]
        fab = Fab(hashlib.sha256(package).hexdigest(), package, {})
        self.run_id = self.control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
        superexec = SuperExecAuthHttpInterceptor(
            master_secret=secret.encode(), protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        runtime = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), superexec],
        )
        self.grid = HttpGrid(address, root_certificates=certificate, token=self._token(runtime))
        runtime.close()
        # Flower has no setting for this; of its own object it calls `invoke` alone, which _Once has.
        self.grid._retry_invoker = _Once()  # pyright: ignore[reportAttributeAccessIssue]
        task = self.grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self.grid.set_run(run_from_proto(task.run))
        self._over = threading.Event()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def _token(self, runtime: RuntimeHttpClient) -> str:
        """The token of this run's task. Runs that an earlier coordinator left behind are stopped on the way."""
        while True:
            acquired = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not acquired.token:
                time.sleep(0.1)
            elif acquired.task.run_id == self.run_id:
                return acquired.token
            else:
                self.control.StopRun(StopRunRequest(run_id=acquired.task.run_id))

    def _heartbeat(self) -> None:
        while not self._over.wait(5):
            try:
                self.grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError:
                continue  # whoever exchanges messages will notice and connect again

    def close(self) -> None:
        """End the run."""
        self._over.set()
        try:
            self.control.StopRun(StopRunRequest(run_id=self.run_id))
        except httpx.HTTPError:
            pass  # the SuperLink is gone, and the run with it
        self.control.close()
        self.grid.close()
