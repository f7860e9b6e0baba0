"""A stand-in for `fedlap.regression.design` where it is not there; to be deleted with the imports of it once it is."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

if importlib.util.find_spec("fedlap.regression.design") is None:
    module = ModuleType("fedlap.regression.design")
    module.Agreement = module.Rows = SimpleNamespace
    module.designs = None
    sys.modules[module.__name__] = module
