"""The metadata of all arrays of a Zarr group at its root, sealed by a checksum: what is read is what was written.

Zarr keeps the metadata of each array in a file of its own, and can gather them at the root ("consolidated"). dmkl reads
them there alone, and the root carries a checksum of itself as its attribute `metadata_crc32c`. With a CRC32C codec at
the end of each array's codecs, no bit that is read goes unchecked.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.errors import ZarrUserWarning
from zarr.storage import StorePath

from dmkl.errors import DamagedFileError
from dmkl.files.checksums import json_crc32c, parse_json
from dmkl.files.plain import check_plain
from dmkl.files.urls import Url, as_place
from dmkl.store.objects import ROOT as _FILE
from dmkl.store.objects import zarr_store

__all__ = ["SEAL", "differing_metadata", "is_sealed", "open_group", "open_part", "seal"]

SEAL = "metadata_crc32c"


def seal(location: str | Store | Path | Url, attrs: Mapping[str, Any] | None = None) -> None:
    """Gather the metadata of all that is in a group at its root, and write them with their checksum in one write.

    Parameters
    ----------
    attrs
        The attributes of the root; those that it has where None.
    """
    with warnings.catch_warnings():
        # Without consolidated metadata xarray.open_zarr warns; Zarr warns that its place in v3 is not settled.
        warnings.simplefilter("ignore", ZarrUserWarning)
        group: Any = zarr.consolidate_metadata(zarr_store(location), zarr_format=3)
    own = {key: value for key, value in (group.attrs if attrs is None else attrs).items() if key != SEAL}
    written = replace(group.metadata, attributes=own).to_buffer_dict(default_buffer_prototype())[_FILE]
    group.attrs.put({**own, SEAL: json_crc32c(parse_json(written.to_bytes()))})


def is_sealed(group: Any) -> bool:
    """Whether a group that `open_group` opened carries a checksum."""
    return SEAL in group.attrs


def open_group(location: str | Store | Path | Url) -> Any:
    """Open a Zarr group for reading, its metadata checked where they are sealed.

    Raises
    ------
    DamagedFileError
        If they are not what was written.
    StoreError
        If an object store does not answer.
    FileNotFoundError, ValueError, TypeError, KeyError
        If it is no Zarr group, as Zarr raises them.
    """
    if isinstance(location, Store):
        group = zarr.open_group(location, mode="r", zarr_format=3)
        if not is_sealed(group):
            return group
        _check(_parsed(_read(group.store_path), location), location)
    else:
        # Zarr takes the name of a relative folder out of the names of what is in it too.
        place = location if isinstance(location, Url) else as_place(location)
        # Before Zarr believes them.
        root = place / _FILE
        if isinstance(place, Path):
            check_plain(place, _FILE)
        sealed = root.is_file() and _check(_parsed(root.read_bytes(), place), place)
        location = zarr_store(place)
        if not sealed:
            return zarr.open_group(location, mode="r", zarr_format=3)
    return zarr.open_group(location, mode="r", zarr_format=3, use_consolidated=True)


def open_part(location: str | Store, path: str) -> Any:
    """Open a group that lies in a group; raises as `open_group`, and KeyError if there is none."""
    group = open_group(location)
    if is_sealed(group):
        return group[path]
    # What was written before there were seals has no metadata of all its parts at its root.
    return zarr.open_group(zarr_store(location), mode="r", path=path, zarr_format=3)


def _read(place: StorePath) -> bytes:
    found = sync((place / _FILE).get())
    return b"" if found is None else found.to_bytes()


def _parsed(data: bytes, where: Any) -> dict[str, Any]:
    try:
        return parse_json(data)
    except ValueError as error:
        msg = f"{where}/{_FILE} is damaged, or no metadata of Zarr: {error}"
        raise DamagedFileError(msg) from error


def _check(found: dict[str, Any], where: Any) -> bool:
    """Whether the metadata of a root are sealed; DamagedFileError if the seal is not theirs."""
    attrs = found.get("attributes")
    if not isinstance(attrs, dict) or SEAL not in attrs:
        return False
    computed = json_crc32c({**found, "attributes": {key: value for key, value in attrs.items() if key != SEAL}})
    if attrs[SEAL] != computed:
        msg = (
            f"{where}/{_FILE} is damaged: its checksum is {computed}, {attrs[SEAL]!r} was written; where it was "
            f"changed on purpose, remove its attribute {SEAL!r}"
        )
        raise DamagedFileError(msg)
    return True


def differing_metadata(group: Any) -> Iterator[str]:
    """One sentence for each array or group whose own metadata are not those that its sealed root has of it.

    Nothing reads them but programs other than dmkl.
    """
    copies = parse_json(_read(group.store_path))["consolidated_metadata"]["metadata"]
    for name, copy in sorted(copies.items()):
        try:
            found = parse_json(_read(group.store_path / name))
        except (ValueError, DamagedFileError) as error:
            yield f"{name}/{_FILE} is damaged: {error}"
            continue
        if _alone(found) != _alone(copy):
            yield f"{name}/{_FILE} is not what was written: the root has other metadata of it"
        else:
            try:
                _check(found, name)  # of what lies in it
            except DamagedFileError as error:
                yield str(error)


def _alone(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without the copies of others that a group may hold."""
    return {key: value for key, value in metadata.items() if key != "consolidated_metadata"}
