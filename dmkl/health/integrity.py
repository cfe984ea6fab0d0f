"""Whether what lies in a Zarr group is what was written: the metadata, and every chunk by its checksum."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from zarr import Array as ZarrArray
from zarr.abc.store import Store

from dmkl.errors import DamagedFileError
from dmkl.files.urls import Place
from dmkl.store.groups import differing_metadata, has_checksum, open_group

__all__ = ["UNSEALED", "damage"]

UNSEALED = (
    "it was written by a dmkl that kept no checksum of metadata; what zarr.json files hold cannot be checked. Write it "
    "again to have one"
)


def damage(location: str | Store | Place, but: Collection[str] = ()) -> Iterator[str]:
    """One sentence for each part of a kernel set, a model or a result that is missing or is not what was written.

    Parameters
    ----------
    but
        Arrays whose chunks are checked by other means.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError
        If it is no Zarr group, as Zarr raises them.
    """
    try:
        group = open_group(location)
    except DamagedFileError as error:
        yield str(error)
        return
    if has_checksum(group):
        yield from differing_metadata(group)
    for name, member in sorted(group.members(max_depth=None)):
        if isinstance(member, ZarrArray) and name not in but:
            yield from _damaged_chunks(name, member)


def _damaged_chunks(name: str, array: Any) -> Iterator[str]:
    missing = array.nchunks - array.nchunks_initialized
    if missing:
        yield f"{name} has missing values: {missing} of {array.nchunks} chunks are not there"
    for place in np.ndindex(array.cdata_shape):
        try:
            array.get_block_selection(place) if place else array[...]
        except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, DamagedFileError) as error:
            yield f"{name} is damaged in chunk {'/'.join(map(str, place)) or 'c'}: {error}"
