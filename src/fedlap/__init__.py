"""fedlap: federated learning where ADMM meets Bayes."""

from . import data
from .algorithms import BCM, PVI, FedADMM, FedAvg, FedDyn, FedLap, FedLapCov, FedLapCovFunc, FedLapFunc, FedProx
from .curvature import ExactHessian, GaussNewton
from .damping import by_share, evenly, then
from .data import Federation, dirichlet, homogeneous, label_rate, natural, two_classes_per_client
from .errors import ConfigError, DataError, DivergedError, DivergedWarning, FedlapError
from .grid import simulate_grid
from .history import History, load
from .models import Model, acar_cnn, logistic, mlp, zenke_cnn
from .simulation import Simulation, simulate
from .solvers import adam, descent, lbfgs, newton

__version__ = "0.1.0"

__all__ = [
    "BCM",
    "PVI",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DivergedWarning",
    "ExactHessian",
    "FedADMM",
    "FedAvg",
    "FedDyn",
    "FedLap",
    "FedLapCov",
    "FedLapCovFunc",
    "FedLapFunc",
    "FedProx",
    "Federation",
    "FedlapError",
    "GaussNewton",
    "History",
    "Model",
    "Simulation",
    "acar_cnn",
    "adam",
    "by_share",
    "data",
    "descent",
    "dirichlet",
    "evenly",
    "homogeneous",
    "label_rate",
    "lbfgs",
    "load",
    "logistic",
    "mlp",
    "natural",
    "newton",
    "simulate",
    "simulate_grid",
    "then",
    "two_classes_per_client",
    "zenke_cnn",
]
