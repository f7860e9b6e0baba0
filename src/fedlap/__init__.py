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
    from fedlap.algebra.evidence import evidence
    from fedlap.algebra.hyperparameters import hyper, hyperparameters
    from fedlap.algebra.precision import Diagonal, Full
    from fedlap.algebra.quadratic import fold, linear, square
    from fedlap.algebra.vector import Vector
    from fedlap.algorithms import (
        BCM,
        PVI,
        SCAFFOLD,
        BayesADMM,
        FedADMM,
        FedAvg,
        FedDyn,
        FedEP,
        FedLap,
        FedLapCov,
        FedLapCovFunc,
        FedLapFunc,
        FedLapKron,
        FedNova,
        FedOpt,
        FedProx,
    )
    from fedlap.algorithms.base import Algorithm, Dual, Point, algorithm
    from fedlap.data import Federation, dirichlet, homogeneous, label_rate, natural, two_classes_per_client
    from fedlap.domains import Domain, choice, optional
    from fedlap.errors import ConfigError, DataError, DivergedError, DivergedWarning, FedlapError
    from fedlap.hooks.mlflow import MLflow
    from fedlap.hooks.tensorboard import TensorBoard
    from fedlap.models import ExactHessian, GaussNewton, Model, acar_cnn, logistic, mlp, zenke_cnn
    from fedlap.models.likelihood import Categorical
    from fedlap.regression.glm import GlmFit, glm
    from fedlap.regression.hazards import CoxFit, cox
    from fedlap.regression.prior import normal
    from fedlap.run.grid import simulate_grid
    from fedlap.run.history import History, load
    from fedlap.run.simulation import Simulation, simulate
    from fedlap.run.watching import RoundEnd
    from fedlap.solvers import adam, annealed, descent, ivon, lbfgs, newton, optimiser, sgd

__version__ = "0.1.0"

__all__ = [
    "BCM",
    "PVI",
    "SCAFFOLD",
    "Algorithm",
    "BayesADMM",
    "Categorical",
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
    "FedEP",
    "FedLap",
    "FedLapCov",
    "FedLapCovFunc",
    "FedLapFunc",
    "FedLapKron",
    "FedNova",
    "FedOpt",
    "FedProx",
    "Federation",
    "FedlapError",
    "Full",
    "GaussNewton",
    "GlmFit",
    "History",
    "MLflow",
    "Model",
    "Point",
    "RoundEnd",
    "Simulation",
    "TensorBoard",
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
    "evidence",
    "fold",
    "glm",
    "homogeneous",
    "hyper",
    "hyperparameters",
    "ivon",
    "label_rate",
    "lbfgs",
    "linear",
    "load",
    "logistic",
    "mlp",
    "natural",
    "newton",
    "normal",
    "optimiser",
    "optional",
    "sgd",
    "simulate",
    "simulate_grid",
    "square",
    "then",
    "two_classes_per_client",
    "zenke_cnn",
]

_HOMES = {
    "algebra.damping": "by_share damping evenly then",
    "algebra.evidence": "evidence",
    "algebra.hyperparameters": "hyper hyperparameters",
    "algebra.precision": "Diagonal Full",
    "algebra.quadratic": "fold linear square",
    "algebra.vector": "Vector",
    "algorithms": "BCM PVI SCAFFOLD BayesADMM FedADMM FedAvg FedDyn FedEP FedLap FedLapCov FedLapCovFunc FedLapFunc "
    "FedLapKron FedNova FedOpt FedProx",
    "algorithms.base": "Algorithm Dual Point algorithm",
    "data": "Federation dirichlet homogeneous label_rate natural two_classes_per_client",
    "domains": "Domain choice optional",
    "errors": "ConfigError DataError DivergedError DivergedWarning FedlapError",
    "hooks.mlflow": "MLflow",
    "hooks.tensorboard": "TensorBoard",
    "models": "ExactHessian GaussNewton Model acar_cnn logistic mlp zenke_cnn",
    "models.likelihood": "Categorical",
    "regression.glm": "GlmFit glm",
    "regression.hazards": "CoxFit cox",
    "regression.prior": "normal",
    "run.grid": "simulate_grid",
    "run.history": "History load",
    "run.simulation": "Simulation simulate",
    "run.watching": "RoundEnd",
    "solvers": "adam annealed descent ivon lbfgs newton optimiser sgd",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
