"""Distributed multiple kernel learning.

Kernel matrices live on disk as one chunked Zarr group (`create`, `open`); a `KernelSet` is a lazy, labeled view of
them;
learners (`MKFDA` and the baselines) find weights with a proven gap, in passes over the tiles that run on Dask.
"""

from dmkl import errors as errors
from dmkl._version import __version__ as __version__
from dmkl.analysis.result import Analysis as Analysis
from dmkl.analysis.run import analyze as analyze
from dmkl.estimators.baselines import Product as Product
from dmkl.estimators.baselines import SingleBest as SingleBest
from dmkl.estimators.fisher import MKFDA as MKFDA
from dmkl.estimators.fisher import Uniform as Uniform
from dmkl.estimators.front import MKLClassifier as MKLClassifier
from dmkl.estimators.groups import GSMKL as GSMKL
from dmkl.estimators.margin import GMKL as GMKL
from dmkl.estimators.margin import MKSVM as MKSVM
from dmkl.estimators.ncuts import NCuts as NCuts
from dmkl.estimators.saving import load as load
from dmkl.features.build import build as build
from dmkl.features.cross import build_cross as build_cross
from dmkl.kernelset import KernelSet as KernelSet
from dmkl.progress import ConsoleWatch as ConsoleWatch
from dmkl.searching.result import SearchResult as SearchResult
from dmkl.searching.run import search as search
from dmkl.stores import create as create
from dmkl.stores import open as open
