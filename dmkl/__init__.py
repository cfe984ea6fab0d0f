"""Distributed multiple kernel learning."""

from dmkl._version import __version__ as __version__
from dmkl.kernelset import KernelSet as KernelSet
from dmkl.kernelset import create as create
from dmkl.kernelset import open as open
