"""The former name of `dmkl.learners`: imports from it give the same modules and classes, with a warning."""

import importlib
import pkgutil
import sys
import warnings

from . import learners

__path__: list[str] = []  # makes `import dmkl.estimators.learner` possible, which then finds the module below

for _module in pkgutil.iter_modules(learners.__path__):
    # The module itself, never a second copy of it: its classes must be the same objects under both names.
    sys.modules[f"{__name__}.{_module.name}"] = importlib.import_module(f"{learners.__name__}.{_module.name}")
warnings.warn(f"{__name__} is called {learners.__name__} now: import from there", FutureWarning, stacklevel=2)
