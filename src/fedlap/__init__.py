"""fedlap: federated learning where ADMM meets Bayes.

A name is imported when it is first used: `fedlap --help` and Ctrl-C need not wait for JAX.
"""

from typing import TYPE_CHECKING

from fedlap.lazy import lazy_names

if TYPE_CHECKING:  # for editors and type checkers, which do not run __getattr__; the same names as in _HOMES
    from fedlap import algorithms as algorithms
    from fedlap import data
    from fedlap import domains as domains
    from fedlap import errors as errors
    from fedlap import models as models
    from fedlap import solvers as solvers
    from fedlap.algebra.damping import by_share, damping, evenly, then
    from fedlap.algebra.hyperparameters import hyper
    from fedlap.algebra.precision import Diagonal, Full
    from fedlap.algebra.quadratic import fold, linear, square
    from fedlap.algebra.vector import Vector
    from fedlap.algorithms import (
        BCM,
        PVI,
        FedADMM,
        FedAvg,
        FedDyn,
        FedLap,
        FedLapCov,
        FedLapCovFunc,
        FedLapFunc,
        FedLapKron,
        FedProx,
    )
    from fedlap.algorithms.base import Algorithm, Dual, Point, algorithm
    from fedlap.data import Federation, dirichlet, homogeneous, label_rate, natural, two_classes_per_client
    from fedlap.domains import Domain, choice, optional
    from fedlap.errors import ConfigError, DataError, DivergedError, DivergedWarning, FedlapError
    from fedlap.models import ExactHessian, GaussNewton, Model, acar_cnn, logistic, mlp, zenke_cnn
    from fedlap.regression.glm import GlmFit, glm
    from fedlap.regression.hazards import CoxFit, cox
    from fedlap.regression.prior import normal
    from fedlap.run.grid import simulate_grid
    from fedlap.run.history import History, load
    from fedlap.run.simulation import Simulation, simulate
    from fedlap.solvers import adam, annealed, descent, lbfgs, newton

__version__ = "0.1.0"

__all__ = [
    "BCM",
    "PVI",
    "Algorithm",
    "ConfigError",
    "CoxFit",
    "DataError",
    "Diagonal",
    "DivergedError",
    "DivergedWarning",
    "Domain",
    "Dual",
    "ExactHessian",
    "FedADMM",
    "FedAvg",
    "FedDyn",
    "FedLap",
    "FedLapCov",
    "FedLapCovFunc",
    "FedLapFunc",
    "FedLapKron",
    "FedProx",
    "Federation",
    "FedlapError",
    "Full",
    "GaussNewton",
    "GlmFit",
    "History",
    "Model",
    "Point",
    "Simulation",
    "Vector",
    "acar_cnn",
    "adam",
    "algorithm",
    "annealed",
    "by_share",
    "choice",
    "cox",
    "damping",
    "data",
    "descent",
    "dirichlet",
    "evenly",
    "fold",
    "glm",
    "homogeneous",
    "hyper",
    "label_rate",
    "lbfgs",
    "linear",
    "load",
    "logistic",
    "mlp",
    "natural",
    "newton",
    "normal",
    "optional",
    "simulate",
    "simulate_grid",
    "square",
    "then",
    "two_classes_per_client",
    "zenke_cnn",
]

_HOMES = {
    "algebra.damping": "by_share damping evenly then",
    "algebra.hyperparameters": "hyper",
    "algebra.precision": "Diagonal Full",
    "algebra.quadratic": "fold linear square",
    "algebra.vector": "Vector",
    "algorithms": "BCM PVI FedADMM FedAvg FedDyn FedLap FedLapCov FedLapCovFunc FedLapFunc FedLapKron FedProx",
    "algorithms.base": "Algorithm Dual Point algorithm",
    "data": "Federation dirichlet homogeneous label_rate natural two_classes_per_client",
    "domains": "Domain choice optional",
    "errors": "ConfigError DataError DivergedError DivergedWarning FedlapError",
    "models": "ExactHessian GaussNewton Model acar_cnn logistic mlp zenke_cnn",
    "regression.glm": "GlmFit glm",
    "regression.hazards": "CoxFit cox",
    "regression.prior": "normal",
    "run.grid": "simulate_grid",
    "run.history": "History load",
    "run.simulation": "Simulation simulate",
    "solvers": "adam annealed descent lbfgs newton",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
