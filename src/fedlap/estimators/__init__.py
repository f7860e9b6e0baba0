"""Estimators for scikit-learn: `fit(X, y, sites=...)`, where `sites` says which site each row is of.

scikit-learn is an extra, and is imported with this package alone.
"""

try:
    import sklearn as sklearn
except ImportError as error:
    raise ImportError('fedlap.estimators needs scikit-learn, not here yet: pip install "fedlap[sklearn]"') from error

from fedlap.estimators.classifier import FedLapClassifier
from fedlap.estimators.regressor import FedLapRegressor

__all__ = ["FedLapClassifier", "FedLapRegressor"]
