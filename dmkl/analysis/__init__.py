"""What a kernel set is like before anything is learned: kernels alike, fit to the labels, dimensions."""

from dmkl.analysis.result import Analysis as Analysis
from dmkl.analysis.run import analyze as analyze
