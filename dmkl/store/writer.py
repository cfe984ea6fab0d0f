"""Writing a kernel set so that it can be killed at any moment: tiles first, then each kernel's record, `complete` last.

A local set is written beside its place, in `<name>.partial`, and renamed when it is complete: at its own name there is
either a whole set or what was there before. A kernel counts as done when its row sums stand; they are written after
all its tiles, so that an interrupted import goes on with the first kernel that has none.
"""

from __future__ import annotations

import errno
import shutil
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.codecs import Crc32cCodec
from zarr.errors import ZarrUserWarning

from dmkl._version import __version__
from dmkl.blocks.tiling import Tiling
from dmkl.errors import DiskFullError, InputError, StoreExistsError
from dmkl.store.reader import Location, as_location, describe, partial_path
from dmkl.store.schema import FORMAT, NODES, attributes, content_id, gram_node

__all__ = ["Header", "StoreWriter"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Header:
    """What all kernels of a set share; a resumed import must have the same."""

    rows: int
    cols: int
    dtype: str
    tile: int
    symmetric: bool
    full: bool

    @property
    def tiling(self) -> Tiling:
        """The tiles of one kernel."""
        return Tiling(self.rows, self.cols, self.tile, upper=self.symmetric and not self.full)


class StoreWriter:
    """A kernel set while it is written.

    Parameters
    ----------
    location
        A folder, a URL or a Zarr store.
    header
        Shape, type and tiles.
    n_kernels
        How many kernels will come; None where that is not known yet.
    overwrite
        Whether a finished set, or an unfinished one with another header, may be replaced. The old set stays
        in its place until the new one is complete (except in stores that cannot rename).

    Raises
    ------
    StoreExistsError
        If a finished set, or anything else, is in the way.
    InputError
        If an unfinished set with another header is in the way.
    """

    def __init__(self, location: Location, header: Header, n_kernels: int | None, *, overwrite: bool = False) -> None:
        self.location = as_location(location)
        self.header = header
        self.tiling = header.tiling
        self._local = isinstance(self.location, str) and "://" not in self.location
        self._target: str | Store = self.location
        if self._local:
            final = Path(str(self.location))
            if final.exists() and not overwrite:
                msg = (
                    f"{final} exists already; choose another path, or ask for it to be replaced "
                    "(overwrite=True, --overwrite)"
                )
                raise StoreExistsError(msg)
            final.parent.mkdir(parents=True, exist_ok=True)
            self._target = str(partial_path(final))
        self._group = self._resume(overwrite) or self._begin(n_kernels)
        if n_kernels is not None and self.n_kernels != n_kernels:
            self._resize(n_kernels)
        self._provenance: list[dict[str, Any] | None] = list(self._group.attrs["kernels"])
        self._provenance += [None] * (self.n_kernels - len(self._provenance))
        self._crc = np.zeros(self.tiling.shape, dtype=np.uint32)

    @property
    def n_kernels(self) -> int:
        """Kernels that the arrays have room for at present."""
        return int(self._gram.shape[0])

    @property
    def _gram(self) -> Any:
        return self._group[gram_node(symmetric=self.header.symmetric, full=self.header.full).name]

    # --- begin or go on ------------------------------------------------------------------------------------------

    def _resume(self, overwrite: bool) -> Any:
        """The unfinished set that stands there, if it can be continued."""
        try:
            group = zarr.open_group(self._target, mode="r+", zarr_format=3)
            attrs = dict(group.attrs)
        except (FileNotFoundError, ValueError, KeyError):
            self._clear()
            return None
        if attrs.get("format") != FORMAT and (self._local or not list(group.keys())):
            self._clear()  # killed before its header stood: no tile was written yet
            return None
        if attrs.get("complete") is True or attrs.get("format") != FORMAT:
            if not overwrite:
                msg = f"{describe(self.location)} holds a finished set; ask for it to be replaced (overwrite=True, --overwrite)"
                raise StoreExistsError(msg)
            self._clear()
            return None
        found, wanted = attrs.get("header"), asdict(self.header)
        if found != wanted:
            if overwrite:
                self._clear()
                return None
            differ = ", ".join(f"{k} {(found or {}).get(k)!r} there, {v!r} here" for k, v in wanted.items() if (found or {}).get(k) != v)
            msg = (
                f"an unfinished set of another make stands at {describe(self._target)} ({differ}); run the command that "
                "began it, or ask for it to be replaced (overwrite=True, --overwrite)"
            )
            raise InputError(msg)
        return group

    def _clear(self) -> None:
        if self._local:
            shutil.rmtree(str(self._target), ignore_errors=True)

    def _begin(self, n_kernels: int | None) -> Any:
        n, header = n_kernels or 0, self.header
        with _full_disk(self.location):
            group = zarr.open_group(self._target, mode="w", zarr_format=3)
            node = gram_node(symmetric=header.symmetric, full=header.full)
            _array(group, node.name, (n, header.rows, header.cols), (1, header.tile, header.tile), header.dtype, np.nan)
            _array(group, "row_sum", (n, header.rows), (1, header.rows), "float64", np.nan)
            _array(group, "tile_crc32c", (n, *self.tiling.shape), (1, *self.tiling.shape), "uint32", 0)
            # Last: where the attributes stand, so do the arrays.
            group.update_attributes(
                attributes(
                    tile=header.tile, symmetric=header.symmetric, complete=False, header=asdict(header), kernels=[]
                )
            )
        return group

    def _resize(self, n: int) -> None:
        for name in (self._gram.basename, "row_sum", "tile_crc32c", "diagonal"):
            if name in self._group:
                array = self._group[name]
                array.resize((n, *array.shape[1:]))

    # --- one kernel ----------------------------------------------------------------------------------------------

    def is_done(self, j: int, identity: dict[str, Any] | None) -> bool:
        """Whether kernel j stands whole, and was made from the same content."""
        if identity is None or j >= len(self._provenance) or self._provenance[j] is None:
            return False
        recorded = dict(self._provenance[j] or {}).get("identity")
        return recorded == identity and not np.isnan(self._group["row_sum"][j, 0])

    def begin_kernel(self, j: int, provenance: dict[str, Any]) -> None:
        """Make room for kernel j and note where it comes from; what stood there no longer counts as done."""
        with _full_disk(self.location):
            if j >= self.n_kernels:
                self._resize(j + 1)
            self._provenance += [None] * (j + 1 - len(self._provenance))
            self._group["row_sum"][j, :] = np.full(self.header.rows, np.nan)
            self._provenance[j] = provenance
            self._group.update_attributes({"kernels": self._provenance})
        self._crc[:] = 0

    def write_tile(self, j: int, row: int, col: int, block: Array) -> None:
        """Write one tile of kernel j."""
        block = np.ascontiguousarray(block)
        self._crc[row, col] = google_crc32c.value(block.view(np.uint8).reshape(-1))
        with _full_disk(self.location):
            self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)] = block

    def read_tile(self, j: int, row: int, col: int) -> Array:
        """Read back a tile that was written."""
        return np.asarray(self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)])

    def end_kernel(self, j: int, row_sum: Array, diagonal: Array | None) -> None:
        """Record kernel j as done: its checksums and diagonal, and its row sums last."""
        with _full_disk(self.location):
            if diagonal is not None:
                if "diagonal" not in self._group:
                    shape = (self.n_kernels, self.header.rows)
                    _array(self._group, "diagonal", shape, (1, self.header.rows), "float64", np.nan)
                self._group["diagonal"][j, :] = diagonal
            self._group["tile_crc32c"][j] = self._crc
            self._group["row_sum"][j, :] = row_sum

    # --- the end -------------------------------------------------------------------------------------------------

    def finish(self, names: Sequence[str], labels: dict[str, Array | None]) -> str | Store:
        """Write the labels, mark the set complete and move it to its place."""
        with _full_disk(self.location):
            for name, values in {"kernel": np.array(names, dtype=object), **labels}.items():
                if values is not None:
                    self._label(name, values)
            group = self._group
            table = group["tile_crc32c"]
            identity = content_id(names, (table[j] for j in range(self.n_kernels)))
            attrs = dict(group.attrs)
            attrs.pop("header", None)
            attrs |= {"content_id": identity, "created_by": f"dmkl {__version__}", "complete": True}
            attrs["kernels"] = [{"name": n, **(p or {})} for n, p in zip(names, self._provenance, strict=True)]
            if self._local:
                # Left by a write that was killed between its temporary file and its rename.
                for stray in Path(str(self._target)).rglob("*.partial"):
                    stray.unlink()
            group.attrs.put(attrs)
            with warnings.catch_warnings():
                # Without consolidated metadata xarray.open_zarr warns; Zarr warns that its place in v3 is not settled.
                warnings.simplefilter("ignore", ZarrUserWarning)
                zarr.consolidate_metadata(self._target, zarr_format=3)
        if self._local:
            self._move_into_place(Path(str(self._target)), Path(str(self.location)))
        return self.location

    @staticmethod
    def _move_into_place(written: Path, final: Path) -> None:
        if not final.exists():
            written.rename(final)
            return
        replaced = final.with_name(f"{final.name}.{uuid.uuid4().hex}.replaced")
        final.rename(replaced)
        written.rename(final)
        if replaced.is_dir():
            shutil.rmtree(replaced)
        else:
            replaced.unlink()

    def _label(self, name: str, values: Array) -> None:
        if name in self._group:
            del self._group[name]
        dims = NODES[name].dims
        if name == "label" and values.ndim == 2:
            dims = ("sample", "task")
        if values.dtype.kind in "OUST":
            array = self._group.create_array(
                name, shape=values.shape, chunks=values.shape, dtype=str, dimension_names=dims, compressors=None
            )
            array[...] = np.array([str(value) for value in values.ravel()], dtype=object).reshape(values.shape)
        else:
            fill = -1 if values.dtype.kind == "i" else 0
            _array(self._group, name, values.shape, values.shape, values.dtype.str, fill, dims)[...] = values


def _array(
    group: Any,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    fill: float,
    dims: tuple[str, ...] | None = None,
) -> Any:
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, length) for length in chunks),
        dtype=dtype,
        fill_value=fill,
        dimension_names=NODES[name].dims if dims is None else dims,
        # Kernel matrices hardly compress; stored as they are, a local tile can be memory-mapped instead of decoded.
        filters=None,
        compressors=[Crc32cCodec()],
        # A tile of zeros is written like any other: a tile that is absent was never written.
        config={"write_empty_chunks": True},
        attributes={"comment": NODES[name].doc},
    )


@contextmanager
def _full_disk(location: str | Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        msg = (
            f"no space left while writing {describe(location)}. What was written is kept: free some space and run the "
            "same command again, and it goes on from there"
        )
        raise DiskFullError(msg) from error
