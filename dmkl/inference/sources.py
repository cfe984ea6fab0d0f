"""What is left out, and what is tried alone: kernels, and named groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError

__all__ = ["Sources", "as_sources"]

Kernels = tuple[int, ...]
"""Positions of kernels, ascending."""


@dataclass(frozen=True)
class Sources:
    """Kernels, then named groups of kernels.

    Parameters
    ----------
    kernels
        Names of all kernels.
    members
        Positions of the kernels of each source, by its name.
    """

    kernels: tuple[str, ...]
    members: Mapping[str, Kernels]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(self.members)

    @property
    def table(self) -> Array:
        """Which kernels each source holds, (source, kernel)."""
        found = np.zeros((len(self.members), len(self.kernels)), dtype=bool)
        for row, some in zip(found, self.members.values(), strict=True):
            row[list(some)] = True
        return found

    def without(self, name: str) -> Kernels:
        """The kernels that are left without a source."""
        return tuple(k for k in range(len(self.kernels)) if k not in self.members[name])

    def together(self, names: Sequence[str]) -> Kernels:
        """The kernels of several sources."""
        return tuple(sorted({k for name in names for k in self.members[name]}))

    def players(self) -> tuple[str, ...]:
        """Sources that make up all kernels between them: the groups, and the kernels that are in none.

        Raises
        ------
        InputError
            If groups share a kernel.
        """
        groups = [name for name in self.members if name not in self.kernels]
        grouped = [k for name in groups for k in self.members[name]]
        shared = {k for k in grouped if grouped.count(k) > 1}
        if shared:
            name = self.kernels[min(shared)]
            msg = (
                f"Shapley values divide the score among groups that share no kernel, and {name!r} is in "
                f"{' and '.join(repr(group) for group in groups if min(shared) in self.members[group])}; leave it out "
                "of all but one, or take shapley=0"
            )
            raise InputError(msg)
        return (*groups, *(name for k, name in enumerate(self.kernels) if k not in grouped))


def as_sources(names: Sequence[str], kernel_groups: Any) -> Sources:
    """Every kernel, and the groups that were named: a mapping from their names to names of kernels, or None.

    Raises
    ------
    InputError
        If there is one kernel alone, or a group has the name of a kernel, no kernels, all of them, or one that is not
        there.
    """
    if len(names) < 2:
        msg = f"what a kernel adds is asked of two kernels at least, and there is {len(names)}; take a set of more"
        raise InputError(msg)
    if kernel_groups is not None and not isinstance(kernel_groups, Mapping):
        msg = f"kernel_groups must map names to names of kernels, as {{'shape': ['a', 'b']}}, got {kernel_groups!r}"
        raise InputError(msg)
    place = {name: k for k, name in enumerate(names)}
    members: dict[str, Kernels] = {name: (k,) for name, k in place.items()}
    for group, some in (kernel_groups or {}).items():
        members[_new_name(group, place)] = _members(group, some, place)
    return Sources(tuple(names), members)


def _new_name(group: Any, place: Mapping[str, int]) -> str:
    if not isinstance(group, str) or not group or group in place:
        why = "the name of a kernel" if isinstance(group, str) and group else "no name"
        msg = f"a group of kernels needs a name of its own, and {group!r} is {why}; choose another"
        raise InputError(msg)
    return group


def _members(group: str, some: Any, place: Mapping[str, int]) -> Kernels:
    if isinstance(some, str) or not all(isinstance(name, str) for name in some):
        msg = f"the group {group!r} must be a list of names of kernels, got {some!r}"
        raise InputError(msg)
    unknown = [name for name in some if name not in place]
    if unknown:
        msg = f"the group {group!r} names {unknown[0]!r}, which is no kernel; those are {', '.join(list(place)[:10])}"
        raise InputError(msg)
    found = sorted({place[name] for name in some})
    if not found or len(found) == len(place):
        left = "no kernel" if not found else "all kernels, and nothing is left without it"
        msg = f"the group {group!r} holds {left}; give it some of the {len(place)} kernels"
        raise InputError(msg)
    return tuple(found)
