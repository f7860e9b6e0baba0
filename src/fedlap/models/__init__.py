"""Models: ready-made ones, networks of layers, your own functions, and modules of Flax.

What is learned about a model besides its outputs is here too: likelihood and curvature.
"""

from fedlap.models.curvature import ExactHessian, GaussNewton
from fedlap.models.model import Model, as_model
from fedlap.models.network import MODELS, Network, acar_cnn, logistic, mlp, zenke_cnn

__all__ = [
    "MODELS",
    "ExactHessian",
    "GaussNewton",
    "Model",
    "Network",
    "acar_cnn",
    "as_model",
    "logistic",
    "mlp",
    "zenke_cnn",
]
