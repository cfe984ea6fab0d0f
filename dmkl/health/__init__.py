"""Whether the kernels of a set are fit to learn from."""

from dmkl.health.check import SEVERITIES as SEVERITIES
from dmkl.health.check import check as check
