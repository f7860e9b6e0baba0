"""A cell of a grid: one run, with a digest that tells it from others."""

from dataclasses import dataclass, replace

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.experiments.spec import Spec
from fedlap.experiments.spec_identity import of_spec
from fedlap.settings.arguments import Table


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: an algorithm with one setting and one seed, on all rows or with some of them held out."""

    algorithm: str
    setting: Table  # the swept keys and their values
    seed: int
    held_out: float
    spec: Spec  # with this algorithm and this seed only

    @property
    def digest(self) -> str:
        """A hash of all that a spec says and that can change a result: two cells that share it are the same.

        That is not the name of a file, nor an accuracy to look out for. [server_solver] counts for every method, even
        for those whose server minimises nothing.
        """
        spec = replace(self.spec, train=replace(self.spec.train, target_accuracy=None))
        return identity.digest({**of_spec(spec), "held_out": identity.of(self.held_out)})[:16]

    @property
    def revision(self) -> int:
        """The revision of the algorithm."""
        return ALGORITHMS[self.algorithm].revision

    @property
    def rounds(self) -> int:
        """The number of rounds, one of a one-shot method."""
        return self.spec.train.rounds_of(ALGORITHMS[self.algorithm])

    @property
    def epochs(self) -> int:
        """The solver's epochs in a round; 1 if it has none."""
        return self.spec.solver.get("epochs", 1)

    @property
    def cost(self) -> float:
        """A number proportional to the steps of a run, to weigh what is left against what is done."""
        return self.rounds * self.epochs * (1 - self.held_out)
