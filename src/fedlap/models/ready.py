"""Ready-made models, by name."""

from collections.abc import Sequence

from fedlap.checks import is_whole
from fedlap.errors import ConfigError
from fedlap.models.layers import Activation, Convolution, Dense, Dropout, Flatten, Layer, MaxPool, zeros
from fedlap.models.network import Network


def logistic(bias: bool = False) -> Network:
    """Multinomial logistic regression, from zero weights: two logits for two classes.

    Flat weights are in the order of a [classes, features] matrix, with all intercepts before it. An intercept has the
    prior of any weight, N(0, 1/δ), and a coefficient of the log-odds, w_1 − w_0, has N(0, 2/δ): two classes are one
    logit with a penalty of δ/2.
    """
    return Network((Flatten(), Dense(bias=bias, draw=zeros)))


def mlp(hidden: Sequence[int] = (200, 100), activation: str = "relu") -> Network:
    """A multilayer perceptron; 178,110 weights on 28 × 28 images of ten classes."""
    if not (isinstance(hidden, (list, tuple)) and all(is_whole(width, least=1) for width in hidden)):
        raise ConfigError(f"mlp: hidden is {hidden!r}; expected whole numbers above 0, for example (200, 100)")
    inner = [layer for width in hidden for layer in (Dense(width), Activation(activation))]
    return Network((Flatten(), *inner, Dense()))


def zenke_cnn() -> Network:
    """The CIFAR network of Zenke et al. (2017), with dropout; 1,250,858 weights for ten classes."""
    relu = Activation("relu")

    def block(width: int) -> tuple[Layer, ...]:
        first, second = Convolution(width, 3, padding=1), Convolution(width, 3)
        return first, relu, second, relu, MaxPool(), Dropout(0.25)

    return Network((*block(32), *block(64), Flatten(), Dense(512), relu, Dropout(0.5), Dense()))


def acar_cnn() -> Network:
    """The CIFAR network of Acar et al. (2021), who proposed FedDyn; 797,962 weights for ten classes."""
    relu = Activation("relu")
    convolutions = [layer for _ in range(2) for layer in (Convolution(64, 5), relu, MaxPool())]
    return Network((*convolutions, Flatten(), Dense(384), relu, Dense(192), relu, Dense()))


MODELS = {model.__name__: model for model in (logistic, mlp, zenke_cnn, acar_cnn)}
