"""Rounds as TensorBoard shows them, written by tensorboardX."""

from types import TracebackType

from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.hooks.numbers import numbers
from fedlap.run.watching import RoundEnd


class TensorBoard:
    """An `on_round` that writes every round's numbers into a folder that `tensorboard --logdir` reads.

    with fedlap.TensorBoard("runs/first") as board: fedlap.simulate(..., on_round=board)
    """

    def __init__(self, folder: PathLike) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError("TensorBoard needs tensorboardX: pip install 'fedlap[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, now: RoundEnd) -> None:
        for name, value in numbers(now).items():
            self._writer.add_scalar(name, value, now.round)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
