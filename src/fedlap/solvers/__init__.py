"""argmin, the one slow and approximate thing in an algorithm, and therefore a parameter.

A local solver has
    step_count(n)              how many minibatches a round has for n examples
    schedule(rng, rows, out)   these minibatches, written to `out` [steps, batch], where −1 stands for no row
    init(variable)             what it keeps between rounds
    minimise(problem, state)   the minimiser it found, and what it keeps
and a solver that needs no minibatches also has `solve(function, start)`, which makes it fit for the server.
"""

from fedlap.registry import Registry
from fedlap.solvers.adam import adam, descent
from fedlap.solvers.annealed import annealed
from fedlap.solvers.lbfgs import lbfgs
from fedlap.solvers.newton import newton
from fedlap.solvers.problem import Problem, ServerSolver, Solver

_LOCAL = {"adam": adam, "lbfgs": lbfgs, "newton": newton}
_OF_SERVER = {"descent": descent, "annealed": annealed, "lbfgs": lbfgs, "newton": newton}

SOLVERS = Registry("solvers", _LOCAL, "what makes a solver, see the pages on solvers of one's own", callable)
SERVER_SOLVERS = Registry("server_solvers", _OF_SERVER, "what makes a solver with `solve(function, start)`", callable)

__all__ = [
    "SERVER_SOLVERS",
    "SOLVERS",
    "Problem",
    "ServerSolver",
    "Solver",
    "adam",
    "annealed",
    "descent",
    "lbfgs",
    "newton",
]
