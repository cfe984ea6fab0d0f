"""Health checks of kernel sets: damage, duplicates, indefinite and constant kernels."""

from dmkl.health.check import SEVERITIES as SEVERITIES
from dmkl.health.check import check as check
