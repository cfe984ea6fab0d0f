# What `dmkl` offers. Each name is imported when it is first used (see __init__.py): a command that only opens a set
# need not wait for solvers and scikit-learn.

from . import errors as errors
from ._version import __version__ as __version__
from .analysis.result import Analysis as Analysis
from .analysis.run import analyze as analyze
from .clusters.places import cluster as cluster
from .estimators.baselines import Product as Product
from .estimators.baselines import SingleBest as SingleBest
from .estimators.fisher import MKFDA as MKFDA
from .estimators.fisher import Uniform as Uniform
from .estimators.groups import GSMKL as GSMKL
from .estimators.margin import GMKL as GMKL
from .estimators.margin import MKSVM as MKSVM
from .estimators.ncuts import NCuts as NCuts
from .estimators.precomputed import PrecomputedMKLClassifier as PrecomputedMKLClassifier
from .estimators.ridge import MKRidge as MKRidge
from .estimators.saving import load as load
from .estimators.tables import MKLClassifier as MKLClassifier
from .estimators.tables import MKLRegressor as MKLRegressor
from .features.build import build as build
from .features.cross import build_cross as build_cross
from .kernelset import KernelSet as KernelSet
from .progress import ConsoleWatch as ConsoleWatch
from .searching.assessing import assess as assess
from .searching.evaluating import evaluate as evaluate
from .searching.evaluation import EvaluationResult as EvaluationResult
from .searching.result import SearchResult as SearchResult
from .searching.run import search as search
from .stores import create as create
from .stores import open as open
