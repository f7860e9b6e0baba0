"""fedlap: federated learning where ADMM meets Bayes.

A name is imported when it is first used: `fedlap --help` and Ctrl-C need not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers, which do not run __getattr__; the same names as in _HOMES
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

_HOMES = {
    "algorithms": "BCM PVI FedADMM FedAvg FedDyn FedLap FedLapCov FedLapCovFunc FedLapFunc FedProx",
    "curvature": "ExactHessian GaussNewton",
    "damping": "by_share evenly then",
    "data": "Federation dirichlet homogeneous label_rate natural two_classes_per_client",
    "errors": "ConfigError DataError DivergedError DivergedWarning FedlapError",
    "grid": "simulate_grid",
    "history": "History load",
    "models": "Model acar_cnn logistic mlp zenke_cnn",
    "simulation": "Simulation simulate",
    "solvers": "adam descent lbfgs newton",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name):
    """A public name, or one of the modules that have them: imported now, and found without this the next time."""
    if name in _HOMES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *__all__})
