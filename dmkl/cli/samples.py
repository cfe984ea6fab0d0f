"""Finding samples by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.cli.output import count
from dmkl.errors import InputError

__all__ = ["positions"]

Array = npt.NDArray[Any]


def positions(samples: Array, names: Array, where: str) -> npt.NDArray[np.int64]:
    """Where `names` stand among `samples`.

    Raises
    ------
    InputError
        If one does not, or is there twice; `where` names their origin.
    """
    place = {str(name): position for position, name in enumerate(samples)}
    wanted = [str(name) for name in np.ravel(names)]
    missing = [name for name in wanted if name not in place]
    if missing:
        msg = (
            f"{where} has {count(len(missing), 'name')} that no sample of the set bears, the first is "
            f"{missing[0]!r}; the samples are called {', '.join(map(repr, list(place)[:3]))} …"
        )
        raise InputError(msg)
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        msg = f"{where} names sample {twice!r} more than once"
        raise InputError(msg)
    return np.array([place[name] for name in wanted], dtype=np.int64)
