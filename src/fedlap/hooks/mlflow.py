"""Rounds as MLflow keeps them: a run of an experiment, with its settings and its numbers."""

from types import TracebackType

from fedlap.errors import ConfigError
from fedlap.hooks.numbers import numbers
from fedlap.run.watching import RoundEnd


class MLflow:
    """An `on_round` that logs every round's numbers, and at first the settings, as one run of an experiment.

    with fedlap.MLflow("hospitals") as log: fedlap.simulate(..., on_round=log)

    It goes where MLflow's own settings say, or to `tracking_uri`; it touches no run that is active elsewhere.
    """

    def __init__(self, experiment: str, *, run: str | None = None, tracking_uri: str | None = None) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError("MLflow needs mlflow or mlflow-skinny: pip install 'fedlap[mlflow]'") from error
        self._client = MlflowClient(tracking_uri=tracking_uri)
        known = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if known is None else known.experiment_id
        self.run_id: str = self._client.create_run(number, run_name=run).info.run_id
        self._described = False

    def __call__(self, now: RoundEnd) -> None:
        if not self._described:
            self._describe(now)
        for name, value in numbers(now).items():
            self._client.log_metric(self.run_id, name, value, step=now.round)

    def _describe(self, now: RoundEnd) -> None:
        simulation = now.history.simulation
        assert simulation is not None, "a run under way has its simulation"
        settings = {
            "algorithm": simulation.algorithm,
            "federation": simulation.federation,
            "solver": simulation.solver,
            "seed": simulation.seed,
            "participation": simulation.participation,
            "weights": simulation.size,
        }
        for name, value in settings.items():
            self._client.log_param(self.run_id, name, str(value))
        self._described = True

    def close(self, status: str = "FINISHED") -> None:
        """End the run."""
        self._client.set_terminated(self.run_id, status)

    def __enter__(self) -> "MLflow":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED")
