"""Check that a folder or file is a kernel set, a model, a result or a state as FORMAT.md (beside it) describes it.

    python check_store.py PATH [PATH …]

prints each rule and whether it holds, and exits with 0 if all of them do, else with 1. It reads everything once. This
is a second implementation of the format: it shares no code with dmkl, and needs nothing but zarr and what zarr needs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

FORMAT, FORMAT_VERSIONS = "dmkl-kernel-set", (1, 2)
STATE, STATE_VERSION = "dmkl-search-state", 4
SEAL = "metadata_crc32c"
BLOCK = 2**20
SAVED = {
    "dmkl-model": {
        "version": 3,
        "attributes": ("model", "parameters", "kind", "classes", "kernel_names", "tasks", "state"),
        "nodes": ("weights_", "dual_coef_", "train_sample", "history"),
    },
    "dmkl-search": {
        "version": 2,
        "attributes": ("rule", "has_model", "estimator", "scoring", "parameters_searched"),
        "nodes": ("score", "weight", "gap", "objective", "status", "fold", "kernel"),
    },
    "dmkl-evaluation": {
        "version": 1,
        "attributes": ("estimator", "scoring", "measures", "parameters_searched"),
        "nodes": ("test_score", "inner_score", "weight", "gap", "status", "fold", "kernel", "search-0"),
    },
    "dmkl-comparison": {
        "version": 1,
        "attributes": ("scoring", "measures", "n_competitors"),
        "nodes": ("test_score", "seconds", "row_p_value", "part", "model", "fold", "evaluation-0"),
    },
    "dmkl-importance": {
        "version": 1,
        "attributes": ("estimator", "scoring", "measures", "rows", "choose", "parameters_searched"),
        "nodes": (
            *("score", "score_without", "score_alone", "loss", "loss_standard_error", "member", "weight", "gap"),
            *("source", "fold", "kernel"),
        ),
    },
    "dmkl-stability": {
        "version": 1,
        "attributes": ("estimator", "scoring", "measures", "how", "threshold", "n_selected", "random_state"),
        "nodes": (
            "weight",
            "mean_weight",
            "standard_error",
            "selected",
            "selection_frequency",
            "score",
            "gap",
            "status",
            "kernel",
        ),
    },
    "dmkl-permutation-test": {
        "version": 1,
        "attributes": ("estimator", "scoring", "choose", "parameters_searched"),
        "nodes": (
            "score",
            "null_score",
            "weight_share",
            "null_weight_share",
            "p_value",
            "kernel_p_value",
            "kernel_p_value_corrected",
            "permutation",
            "kernel",
        ),
    },
    "dmkl-association": {
        "version": 1,
        "attributes": ("family", "n_samples", "n_covariates"),
        "nodes": ("excess", "p_value", "q_value", "omnibus_p_value", "kernel"),
    },
    "dmkl-kernel-scores": {
        "version": 1,
        "attributes": (),
        "nodes": (
            *("kernel_r2", "kernel_correlation", "rest_r2", "rest_correlation", "total_r2", "total_correlation"),
            "kernel",
        ),
    },
}
"""Models and results: the newest version, attributes of the root, arrays and groups."""

DIMENSIONS = {
    "gram_upper": ("kernel", "sample", "sample_2"),
    "gram": ("kernel", "sample", "train_sample"),
    "kernel": ("kernel",),
    "sample": ("sample",),
    "train_sample": ("train_sample",),
    "label": ("sample",),
    "target": ("sample",),
    "task": ("task",),
    "split": ("split", "sample"),
    "diagonal": ("kernel", "sample"),
    "row_sum": ("kernel", "sample"),
    "tile_crc32c": ("kernel", "tile_row", "tile_col"),
}
TYPES = {
    "gram_upper": ("float32", "float64"),
    "gram": ("float32", "float64"),
    "kernel": ("string",),
    "sample": ("string",),
    "train_sample": ("string",),
    "label": ("int64", "string", "int8"),
    "target": ("float64",),
    "task": ("string",),
    "split": ("int8",),
    "diagonal": ("float64",),
    "row_sum": ("float64",),
    "tile_crc32c": ("uint32",),
}


class Broken(Exception):
    """A rule does not hold, and those that build on it cannot be checked."""


# --- CRC32C ----------------------------------------------------------------------------------------------------------


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


TABLE = _byte_table()


def _apply(operator: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Apply a linear map of 32 bits, given as the images of the bits, to each state."""
    result = np.zeros_like(states)
    for bit in range(32):
        result ^= np.where((states >> np.uint32(bit)) & np.uint32(1), operator[bit], np.uint32(0))
    return result


@functools.cache
def _zeros(count: int) -> np.ndarray:
    """The linear map that `count` zero bytes are to the state."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step = TABLE[bits & 255] ^ (bits >> np.uint32(8))
    result = bits
    while count:
        if count & 1:
            result = _apply(step, result)
        step = _apply(step, step)
        count >>= 1
    return result


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), as RFC 3720 defines it.

    The data is cut into lanes that NumPy takes a byte further side by side. As the checksum is linear, two
    neighboring lanes join as the first one, taken through as many zero bytes as the second one has, plus the second.
    """
    length = len(data)
    width = max(64, length >> 14)
    lanes = 1
    while lanes * width < length:
        lanes *= 2
    # Zero bytes in front change nothing in a state of zero.
    padded = np.zeros(lanes * width, dtype=np.uint8)
    padded[lanes * width - length :] = np.frombuffer(data, dtype=np.uint8)
    columns = np.ascontiguousarray(padded.reshape(lanes, width).T)
    states = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        states = TABLE[(states ^ column) & np.uint32(255)] ^ (states >> np.uint32(8))
    operator = _zeros(width)
    while len(states) > 1:
        states = _apply(operator, states[0::2]) ^ states[1::2]
        operator = _apply(operator, operator)
    start = _apply(_zeros(length), np.array([0xFFFFFFFF], dtype=np.uint32))
    return int(states[0] ^ start[0]) ^ 0xFFFFFFFF


# --- the rules -------------------------------------------------------------------------------------------------------


class Rules:
    """Goes through rules for one folder."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        self.path, self.say = path, say
        self.failed = 0
        self.unreadable: list[str] = []

    def rules(self) -> tuple[tuple[str, Callable[[], Iterator[str]]], ...]:
        """The rules by what they say."""
        raise NotImplementedError

    def run(self) -> bool:
        """Check all rules; whether they all hold."""
        for name, rule in self.rules():
            try:
                found = list(rule())
                stop = False
            except Broken as error:
                found, stop = [str(error)], True
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
                found, stop = [f"it cannot be checked: {error}"], True
            found, self.unreadable = self.unreadable + found, []
            self.say(f"{'FAIL' if found else 'ok  '} {name}")
            for line in found[:20]:
                self.say(f"       {line}")
            if len(found) > 20:
                self.say(f"       … and {len(found) - 20} more")
            self.failed += bool(found)
            if stop:
                self.say("       what builds on this was not checked")
                break
        return not self.failed

    def strays(self) -> Iterator[str]:
        """Leftovers of killed writes."""
        for stray in sorted(self.path.rglob("*.partial")):
            yield str(stray.relative_to(self.path))


class ZarrRules(Rules):
    """Rules that hold for every Zarr group of the format."""

    kept: frozenset[int] = frozenset()
    """The kernels that are kept as factors: arrays have no chunks of them."""

    def root(self) -> Iterator[str]:
        """Zarr v3 group."""
        if not self.path.exists():
            beside = self.path.with_name(self.path.name + ".partial")
            unfinished = f"; there is an unfinished set at {beside}" if beside.exists() else ""
            msg = f"there is nothing at {self.path}{unfinished}"
            raise Broken(msg)
        try:
            metadata = _json(self.path / "zarr.json")
            if metadata.get("zarr_format") != 3 or metadata.get("node_type") != "group":
                msg = "zarr.json is not that of a Zarr v3 group"
                raise Broken(msg)
            self.metadata = metadata
            self.sealed = isinstance(metadata.get("attributes"), dict) and SEAL in metadata["attributes"]
            if self.sealed and metadata["attributes"][SEAL] != _checksum_of(metadata, "attributes", SEAL):
                msg = f"zarr.json is not what was written: its {SEAL} is {metadata['attributes'][SEAL]!r}"
                raise Broken(msg)
            # What each array says of itself counts, not the copy at the root.
            self.group = zarr.open_group(str(self.path.absolute()), mode="r", zarr_format=3, use_consolidated=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"it cannot be opened: {error}"
            raise Broken(msg) from error
        self.attrs = dict(self.group.attrs)
        return iter(())

    def consolidated(self) -> Iterator[str]:
        """The copy of all metadata at the root."""
        copies = self.metadata.get("consolidated_metadata")
        if copies is None:
            if self.sealed:
                yield f"there is none, but {SEAL}"
            return
        for name, copy in sorted(copies["metadata"].items()):
            own = self.path / name / "zarr.json"
            try:
                found = _json(own)
            except FileNotFoundError:
                yield f"{name} is in the consolidated metadata, but not in the folder"
                continue
            except (OSError, ValueError) as error:
                msg = f"{name}/zarr.json cannot be read: {error}"
                raise Broken(msg) from error
            attrs = found.get("attributes")
            if _alone(found) != _alone(copy):
                yield f"{name} is not as the consolidated metadata say"
            elif isinstance(attrs, dict) and SEAL in attrs and attrs[SEAL] != _checksum_of(found, "attributes", SEAL):
                yield f"{name}/zarr.json is not what was written: its {SEAL} is {attrs[SEAL]!r}"
        if self.sealed:
            there = {file.parent.relative_to(self.path).as_posix() for file in self.path.rglob("zarr.json")} - {"."}
        else:
            there = set(self.group.array_keys())
        for name in sorted(there - set(copies["metadata"])):
            yield f"{name} is missing from the consolidated metadata"

    def chunks(self) -> Iterator[str]:
        """Every chunk of every array but the matrices."""
        copies = (self.metadata.get("consolidated_metadata") or {}).get("metadata", {})
        names = [name for name, copy in sorted(copies.items()) if copy.get("node_type") == "array"]
        for name in names:
            if name in ("gram", "gram_upper"):
                continue
            try:
                array = self.group[name]
                kept = self.kept if name in ("row_sum", "diagonal", "tile_crc32c") else frozenset()
                missing = array.nchunks - len(kept) - array.nchunks_initialized
                if missing:
                    yield f"{missing} of {array.nchunks} chunks of {name} are missing"
                for place in np.ndindex(array.cdata_shape):
                    if not place or place[0] not in kept:
                        array.get_block_selection(place) if place else array[...]
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
                yield f"{name} cannot be read: {error}"
                continue
            codecs = [codec["name"] for codec in copies[name]["codecs"]]
            if self.sealed and codecs[-1] != "crc32c":
                yield f"the codecs of {name} are {', '.join(codecs)}; the last one must be crc32c"


class Checker(ZarrRules):
    """A kernel set."""

    def rules(self) -> tuple[tuple[str, Callable[[], Iterator[str]]], ...]:
        """See `Rules`."""
        return (
            ("the folder is a Zarr v3 group, its metadata what was written", self.root),
            ("the root attributes are there, of a known version, and say complete", self.attributes),
            ("no temporary file of an interrupted write is left", self.strays),
            ("consolidated metadata, where there is any, agrees with the arrays", self.consolidated),
            ("one array holds the matrices, in chunks of one tile", self.matrices),
            ("the other arrays are there, with their types, shapes and dimensions", self.nodes),
            ("names are unique", self.names),
            ("labels and splits hold what they may", self.labels),
            ("the tiles that must be there are, and no others", self.tile_files),
            ("tiles hold what was written there, finite and symmetric", self.tiles),
            ("diagonal and row_sum are those of the matrices", self.statistics),
            ("features of kernels without tiles are what was written there", self.factors),
            ("content_id is that of the names, tiles and factors", self.content),
            ("all other arrays, those of features too, can be read", self.chunks),
        )

    def attributes(self) -> Iterator[str]:
        """Root attributes."""
        attrs = self.attrs
        if attrs.get("format") != FORMAT:
            msg = f"format is {attrs.get('format')!r}, must be {FORMAT!r}"
            raise Broken(msg)
        version = attrs.get("format_version")
        if version not in FORMAT_VERSIONS or isinstance(version, bool):
            msg = f"format_version is {version!r}, must be 1 or 2"
            raise Broken(msg)
        if attrs.get("complete") is not True:
            msg = f"complete is {attrs.get('complete')!r}, must be true: the set was never finished"
            raise Broken(msg)
        if not isinstance(attrs.get("tile"), int) or isinstance(attrs["tile"], bool) or attrs["tile"] < 1:
            msg = f"tile is {attrs.get('tile')!r}, must be a positive integer"
            raise Broken(msg)
        if not isinstance(attrs.get("symmetric"), bool):
            msg = f"symmetric is {attrs.get('symmetric')!r}, must be true or false"
            raise Broken(msg)
        self.tile, self.symmetric = attrs["tile"], attrs["symmetric"]
        kernels = attrs.get("kernels")
        if not isinstance(kernels, list) or not all(isinstance(entry, dict) for entry in kernels):
            yield "kernels must be a list of objects, one for each kernel"
            kernels = []
        self.kernels = kernels
        self.kept = frozenset(j for j, entry in enumerate(kernels) if entry.get("storage") == "factors")
        if version != 1 + bool(self.kept):
            yield f"format_version is {version}, must be {1 + bool(self.kept)}: {len(self.kept)} kernels have no tiles"
        for name in ("content_id", "created_by"):
            if not isinstance(attrs.get(name), str):
                yield f"{name} is {attrs.get(name)!r}, must be a string"

    def matrices(self) -> Iterator[str]:
        """The array of matrices."""
        there = [name for name in ("gram_upper", "gram") if name in self.group]
        if len(there) != 1:
            msg = f"exactly one of gram_upper and gram must be there, found {there or 'neither'}"
            raise Broken(msg)
        self.upper = there[0] == "gram_upper"
        if self.upper and not self.symmetric:
            msg = "gram_upper holds symmetric matrices, but symmetric is false"
            raise Broken(msg)
        if self.kept and not self.upper:
            yield "kernels of gram are kept as factors, must be those of gram_upper"
        self.gram = self.group[there[0]]
        shape = self.gram.shape
        if len(shape) != 3 or min(shape) < 1:
            msg = f"{there[0]} has shape {shape}, must be (kernels, samples, samples) with at least one each"
            raise Broken(msg)
        if self.symmetric and shape[1] != shape[2]:
            msg = f"symmetric is true, but the matrices are {shape[1]} × {shape[2]}"
            raise Broken(msg)
        self.n, self.rows, self.cols = shape
        self.grid = (-(-self.rows // self.tile), -(-self.cols // self.tile))
        metadata = self.gram.metadata.to_dict()
        if tuple(self.gram.chunks) != (1, self.tile, self.tile):
            msg = f"{there[0]} has chunks {self.gram.chunks}, must be (1, {self.tile}, {self.tile})"
            raise Broken(msg)
        if not np.isnan(self.gram.fill_value):
            yield f"the fill value of {there[0]} is {self.gram.fill_value}, must be NaN"
        if metadata["chunk_key_encoding"] != {"name": "default", "configuration": {"separator": "/"}}:
            yield f"chunks of {there[0]} must be found by the default keys with '/'"
        names = [codec["name"] for codec in metadata["codecs"]]
        little = metadata["codecs"][0].get("configuration", {}).get("endian") == "little"
        self.plain = names == ["bytes", "crc32c"] and little
        if not self.plain:
            self.say(f"note {there[0]} has the codecs {', '.join(names)}; bytes (little) and crc32c are usual")

    def nodes(self) -> Iterator[str]:
        """The other arrays."""
        needed = {"kernel", "sample", "row_sum", "tile_crc32c"}
        needed |= {"diagonal"} if self.symmetric and len(self.kept) < self.n else set()
        needed |= set() if self.upper else {"train_sample"}
        for name in sorted(needed - set(self.group.array_keys())):
            yield f"{name} is missing"
        lengths = {
            "kernel": self.n,
            "sample": self.rows,
            "sample_2": self.rows,
            "train_sample": self.cols,
            "tile_row": self.grid[0],
            "tile_col": self.grid[1],
        }
        self.broken = {name for name in needed if name not in self.group}
        for name, array in self.group.arrays():
            if name not in DIMENSIONS:
                self.say(f"note {name} is no array of this format; readers leave it alone")
                continue
            dimensions = DIMENSIONS[name]
            if name in ("label", "target") and array.ndim == 2:
                dimensions = ("sample", "task")
            found = array.metadata.dimension_names
            problems = []
            if found is None or tuple(found) != dimensions:
                problems.append(f"{name} has the dimensions {found}, must be {dimensions}")
            if array.metadata.to_dict()["data_type"] not in TYPES[name]:
                data_type = array.metadata.to_dict()["data_type"]
                problems.append(f"{name} is of type {data_type}, must be {' or '.join(TYPES[name])}")
            expected = tuple(lengths.get(dimension, -1) for dimension in dimensions)
            wrong = len(array.shape) != len(expected) or any(
                -1 != length != there for there, length in zip(array.shape, expected, strict=False)
            )
            if wrong:
                shape = ", ".join("any" if length < 0 else str(length) for length in expected)
                problems.append(f"{name} has shape {array.shape}, must be ({shape})")
            if problems:
                self.broken.add(name)
                yield from problems

    def _read(self, name: str) -> Any:
        """An array, or None where it is missing, not as it must be, or damaged."""
        if name not in self.group or name in self.broken:
            return None
        try:
            return self.group[name][...]
        except (ValueError, RuntimeError, OSError) as error:
            self.broken.add(name)
            self.unreadable.append(f"{name} cannot be read: {error}")
            return None

    def names(self) -> Iterator[str]:
        """Unique names."""
        self.kernel_names: list[str] | None = None
        for name in ("kernel", "sample", "train_sample", "task"):
            values = self._read(name)
            if values is None:
                continue
            texts = [str(value) for value in values]
            if name == "kernel":
                self.kernel_names = texts
            for text, count in Counter(texts).items():
                if count > 1:
                    yield f"{name} {text!r} occurs {count} times"
                if "\0" in text:
                    yield f"{name} {text!r} holds a zero character"
        listed = [entry.get("name") for entry in self.attrs.get("kernels") or () if isinstance(entry, dict)]
        if self.kernel_names is not None and listed != self.kernel_names:
            yield f"the attribute kernels lists {listed}, the array kernel {self.kernel_names}"

    def labels(self) -> Iterator[str]:
        """Labels and splits."""
        label, split, task = self._read("label"), self._read("split"), self._read("task")
        target = self._read("target")
        if label is not None and target is not None:
            yield "label and target are there, must be one of them"
        if target is not None and np.isinf(target).any():
            yield "target must hold numbers, and NaN where they are unknown"
        if label is not None and (label.dtype == np.int8) != (label.ndim == 2):
            yield f"label is {label.dtype}, must be int64 or string for classes, int8 for (sample, task)"
        if label is not None and label.ndim == 2:
            if not np.isin(label, (0, 1)).all():
                yield "label (sample, task) must hold 0 and 1"
        columns = {name: array for name, array in (("label", label), ("target", target)) if array is not None}
        columns = {name: array.shape[1] for name, array in columns.items() if array.ndim == 2}
        for name, n_columns in columns.items():
            if task is None or len(task) != n_columns:
                yield f"task must name the {n_columns} columns of {name}"
        if task is not None and not columns:
            yield "task is there, but label has no tasks"
        if split is not None and not np.isin(split, (-1, 0, 1, 2)).all():
            yield "split must hold -1, 0, 1 and 2"

    def _tiled(self) -> list[int]:
        """The kernels that have tiles."""
        return [j for j in range(self.n) if j not in self.kept]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for row in range(self.grid[0]):
            for col in range(row if self.upper else 0, self.grid[1]):
                yield row, col

    def tile_files(self) -> Iterator[str]:
        """Which tiles there are."""
        self.absent: set[tuple[int, int, int]] = set()
        if not self.plain:
            return  # with other codecs a chunk may hold several tiles
        folder = self.path / self.gram.basename / "c"
        wanted = {(j, row, col) for j in self._tiled() for row, col in self._pairs()}
        size = self.tile**2 * self.gram.dtype.itemsize + 4
        there = set()
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            parts = file.relative_to(folder).parts
            key = tuple(int(part) if part.isdecimal() else -1 for part in parts)
            if file.name.endswith(".partial"):
                continue
            if key not in wanted:
                below = len(key) == 3 and self.upper and key[1] > key[2] >= 0
                yield f"{'/'.join(parts)} must not be there{': it is below the diagonal' if below else ''}"
                continue
            there.add(key)
            if file.stat().st_size != size:
                yield f"tile {key[1:]} of kernel {key[0]} has {file.stat().st_size} bytes, must have {size}"
        for key in sorted(wanted - there):
            self.absent.add(key)
            yield f"tile {key[1:]} of kernel {key[0]} is missing"

    def tiles(self) -> Iterator[str]:
        """What tiles hold; gathers the sums and checksums that the next rules compare."""
        table = self._read("tile_crc32c")
        self.row_sum = np.zeros((self.n, self.rows))
        self.magnitude = np.zeros((self.n, self.rows))
        self.own = np.full((self.n, self.rows), np.nan)
        self.checksums = np.zeros((self.n, *self.grid), dtype="<u4")
        for j in self._tiled():
            for row, col in self._pairs():
                if (j, row, col) not in self.absent:
                    yield from self._tile(j, row, col, table)
            if table is not None and self.upper:
                below = np.tril(np.ones(self.grid, dtype=bool), -1)
                if table[j][below].any():
                    yield f"tile_crc32c of kernel {j} must be 0 below the diagonal, where there is no tile"

    def _slices(self, row: int, col: int) -> tuple[slice, slice]:
        return (
            slice(row * self.tile, min((row + 1) * self.tile, self.rows)),
            slice(col * self.tile, min((col + 1) * self.tile, self.cols)),
        )

    def _tile(self, j: int, row: int, col: int, table: Any) -> Iterator[str]:
        where = f"tile ({row}, {col}) of kernel {j}"
        rows, cols = self._slices(row, col)
        try:
            tile = np.asarray(self.gram[j, rows, cols])
        except (ValueError, RuntimeError, OSError) as error:
            yield f"{where} is damaged: {error}"
            return
        self.checksums[j, row, col] = crc32c(tile.astype(tile.dtype.newbyteorder("<")).tobytes())
        if table is not None and self.checksums[j, row, col] != table[j, row, col]:
            yield (
                f"{where} has the checksum {self.checksums[j, row, col]:08x}, tile_crc32c says "
                f"{table[j, row, col]:08x}: it is not what was written there"
            )
        if not np.isfinite(tile).all():
            i, k = np.argwhere(~np.isfinite(tile))[0]
            yield f"{where} holds {tile[i, k]} at ({rows.start + i}, {cols.start + k})"
            return
        self.row_sum[j, rows] += tile.sum(axis=1, dtype=np.float64)
        self.magnitude[j, rows] += np.abs(tile).sum(axis=1, dtype=np.float64)
        if self.upper and row != col:
            self.row_sum[j, cols] += tile.sum(axis=0, dtype=np.float64)
            self.magnitude[j, cols] += np.abs(tile).sum(axis=0, dtype=np.float64)
        if not self.symmetric:
            return
        if row == col:
            self.own[j, rows] = tile.diagonal()
            if not np.array_equal(tile, tile.T):
                yield f"{where} is not symmetric"
        elif row > col and (j, col, row) not in self.absent:
            try:
                above = np.asarray(self.gram[j, cols, rows])
            except (ValueError, RuntimeError, OSError):
                return  # told where that tile is read
            if not np.array_equal(tile, above.T):
                yield f"{where} is not the transpose of tile ({col}, {row})"

    def statistics(self) -> Iterator[str]:
        """Diagonal and row sums."""
        row_sum, diagonal = self._read("row_sum"), self._read("diagonal")
        for j in self._tiled():
            if row_sum is not None:
                # The order of summation is free.
                off = np.abs(row_sum[j] - self.row_sum[j]) > 1e-9 * self.magnitude[j]
                if off.any() or np.isnan(row_sum[j]).any():
                    i = int(np.argmax(off | np.isnan(row_sum[j])))
                    yield f"row_sum of kernel {j} is {row_sum[j, i]} for sample {i}, must be {self.row_sum[j, i]}"
            if diagonal is None:
                continue
            wrong = diagonal[j] != self.own[j] if self.symmetric else ~np.isfinite(diagonal[j])
            if wrong.any():
                i = int(np.argmax(wrong))
                must = self.own[j, i] if self.symmetric else "finite"
                yield f"diagonal of kernel {j} is {diagonal[j, i]} for sample {i}, must be {must}"

    def factors(self) -> Iterator[str]:
        """The features that kernels are kept as."""
        tables = {}
        for _, table in self.group["features"].groups() if "features" in self.group else ():
            tables[table.attrs["name"]] = table
        for j, entry in enumerate(self.kernels):
            exact = (entry.get("approximation") or {}).get("of", entry)
            for step in exact.get("transform", {}).get("steps", ()):
                if step["step"] in ("tfidf", "grm", "grm=vanraden") and step.get("factors") not in tables:
                    yield f"kernel {j} is of transformed features, and has no table {step.get('factors')!r}"
            scale = exact.get("transform", {}).get("scale")
            if scale is not None and not (
                {"values", "whole", "negative", "size"} == set(scale)
                and all(0 <= scale[key] <= 1 for key in ("whole", "negative"))
                and all(0 <= scale[key] < np.inf for key in ("values", "size"))
            ):
                yield f"kernel {j} is of transformed features with the scale {scale!r}"
        for j in sorted(self.kept):
            entry = self.kernels[j]
            table = tables.get(entry.get("feature"))
            if entry.get("function") not in ("linear", "cosine") or table is None:
                what = f"{entry.get('function')!r} of {entry.get('feature')!r}"
                yield f"kernel {j} is {what}, must be linear or cosine of a table in the set"
                continue
            if table.attrs["content"] != entry.get("feature_content") or table.attrs["n_missing"] != 0:
                yield f"kernel {j} is of other features than {entry['feature']!r}, or samples lack these"
            if table["values"].shape[0] != self.rows:
                yield f"{entry['feature']!r} has {table['values'].shape[0]} rows, must have {self.rows}"
            yield from self._approximation(j, tables)
        for name in sorted({self.kernels[j].get("feature") for j in self.kept} & set(tables)):
            values = tables[name]["values"][...]
            little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            start = f"{little.dtype.str} {values.shape[0]} {values.shape[1]}"
            digest = hashlib.blake2b(start.encode() + little.tobytes(), digest_size=16).hexdigest()
            if digest != tables[name].attrs["content"]:
                yield f"the digest of {name!r} is {digest}, and {tables[name].attrs['content']} on record"

    def _approximation(self, j: int, tables: dict[str, Any]) -> Iterator[str]:
        """The tables that give Z of new samples, of a kernel of low rank."""
        entry = self.kernels[j]
        made = entry.get("approximation")
        if made is None:
            return
        lacking = [key for key in ("points", "map") if made.get(key) not in tables]
        if lacking:
            yield f"kernel {j} is of low rank, and has no table {lacking[0]!r}: {made.get(lacking[0])!r}"
            return
        points, matrix = (tables[made[key]]["values"].shape for key in ("points", "map"))
        rows, rank = points[0] if made.get("method") == "nystroem" else 1, tables[entry["feature"]]["values"].shape[1]
        if made.get("method") not in ("nystroem", "fourier") or matrix != (rows, rank) or made.get("rank") != rank:
            what = f"rank {made.get('rank')!r} by {made.get('method')!r}, its map is {matrix}"
            yield f"kernel {j} is of {what}, must be of rank {rank} by nystroem or fourier, its map {(rows, rank)}"

    def content(self) -> Iterator[str]:
        """The content id."""
        if self.kernel_names is None:
            return
        digest = hashlib.sha256()
        for j, (name, table) in enumerate(zip(self.kernel_names, self.checksums, strict=True)):
            digest.update(name.encode("utf-8") + b"\0")
            if j in self.kept:
                keys = ("columns", "feature_content", "function", "parameters")
                recipe = {"dtype": self.gram.dtype.name, **{key: self.kernels[j].get(key) for key in keys}}
                digest.update(json.dumps(recipe, sort_keys=True, separators=(",", ":")).encode())
            else:
                digest.update(table.tobytes())
        expected = f"sha256:{digest.hexdigest()}"
        if self.attrs.get("content_id") != expected:
            yield f"content_id is {self.attrs.get('content_id')}, must be {expected}"


class SavedChecker(ZarrRules):
    """A model, or a result."""

    def rules(self) -> tuple[tuple[str, Callable[[], Iterator[str]]], ...]:
        """See `Rules`."""
        return (
            ("the folder is a Zarr v3 group, its metadata what was written", self.root),
            ("the root attributes are there, of a known version", self.attributes),
            ("no temporary file of an interrupted write is left", self.strays),
            ("consolidated metadata agrees with the arrays", self.consolidated),
            ("all arrays can be read, and are what was written", self.chunks),
            ("the arrays and groups that must be there are", self.nodes),
        )

    def run(self) -> bool:
        """See `Rules`; an archive is unpacked."""
        if not self.path.is_file():
            return super().run()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with zipfile.ZipFile(self.path) as archive:
                    archive.extractall(folder)
            except zipfile.BadZipFile as error:
                self.say(f"FAIL the file is a whole ZIP file\n       {error}")
                return False
            self.path = Path(folder)
            return super().run()

    def attributes(self) -> Iterator[str]:
        """Root attributes."""
        self.wanted = SAVED[self.attrs["format"]]
        version = self.attrs.get("format_version")
        if version not in range(1, self.wanted["version"] + 1) or isinstance(version, bool):
            msg = f"format_version is {version!r}, must be an integer from 1 to {self.wanted['version']}"
            raise Broken(msg)
        if not self.sealed:
            self.say(f"note there is no {SEAL}: it was written by a program that knew none")
        for name in self.wanted["attributes"]:
            if name not in self.attrs:
                yield f"{name} is missing"

    def nodes(self) -> Iterator[str]:
        """Arrays and groups."""
        for name in self.wanted["nodes"]:
            if name not in self.group:
                yield f"{name} is missing"
        if self.attrs.get("has_model") and "best" not in self.group:
            yield "best is missing, and has_model is true"
        for name in self.attrs.get("arrays", []):
            if name.rstrip("_") not in self.group:
                yield f"group {name.rstrip('_')} is missing, and arrays names {name}"


class StateChecker(Rules):
    """The state of a search."""

    def rules(self) -> tuple[tuple[str, Callable[[], Iterator[str]]], ...]:
        """See `Rules`."""
        return (
            ("state.json is what was written, of a known version", self.root),
            ("state.json of each part is what was written", self.parts),
            ("the files that they name are there", self.named),
            ("files of arrays are what was written", self.files),
        )

    def root(self) -> Iterator[str]:
        """Of the whole."""
        self.states = [(self.path, _state(self.path / "state.json"))]
        return iter(())

    def parts(self) -> Iterator[str]:
        """Of parts with a solver of their own."""
        for file in sorted(self.path.rglob("part-*/state.json")):
            try:
                self.states.append((file.parent, _state(file)))
            except Broken as error:
                yield f"{file.relative_to(self.path)}: {error}"

    def named(self) -> Iterator[str]:
        """What a later run reads."""
        for folder, state in self.states:
            solver = state.get("solver")
            names = ["statistics.npz"] if "steps" in state.get("statistics", {}) else []
            for number, space in enumerate([] if solver is None else solver["spaces"]):
                own = [space["gram"].replace("gram", what) for what in ("gram", "basis", "errors") if space["width"]]
                own += [file for block in space["blocks"] for file, _ in block["groups"]]
                own += [file for file, _ in space["probed"]]
                own += [f"anchor-{one['number']}-{i}-{j}.npy" for one in space["anchors"] for i, j in one["tiles"]]
                names += [f"fold-{number}/{name}" for name in own]
            names += [] if solver is None else [solver["points"]]
            for name in names:
                if not (folder / name).is_file():
                    yield f"{name} is missing in {folder}"

    def files(self) -> Iterator[str]:
        """Arrays with their checksums."""
        for file in sorted(self.path.rglob("*.np[yz]")):
            problem = _trailer(file.read_bytes())
            if problem:
                yield f"{file.relative_to(self.path)} {problem}"


def _json(file: Path) -> dict[str, Any]:
    """The object in a file; ValueError where there is none."""
    try:
        found = json.loads(file.read_bytes())
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(found, dict):
        msg = f"it holds {type(found).__name__}, must hold an object"
        raise ValueError(msg)
    return found


def _checksum_of(content: dict[str, Any], *place: str) -> str:
    """CRC-32C of an object without the key at a place, as JSON without spaces, in ASCII, its keys sorted."""
    content = json.loads(json.dumps(content))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return f"{crc32c(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _state(file: Path) -> dict[str, Any]:
    try:
        found = _json(file)
    except (OSError, ValueError) as error:
        msg = f"it cannot be read: {error}"
        raise Broken(msg) from error
    if found.get("crc32c") != _checksum_of({"crc32c": "", **found}, "crc32c"):
        msg = f"it is not what was written: its crc32c is {found.get('crc32c')!r}"
        raise Broken(msg)
    if (found.get("format"), found.get("format_version")) != (STATE, STATE_VERSION):
        msg = f"format is {found.get('format')!r} {found.get('format_version')!r}, must be {STATE!r} {STATE_VERSION}"
        raise Broken(msg)
    state: dict[str, Any] = found["state"]
    return state


def _trailer(data: bytes) -> str:
    """What is wrong with the checksums after the bytes of an array; empty where nothing is."""
    if len(data) < 12:
        return f"has {len(data)} bytes, must have 12 at least"
    size = int.from_bytes(data[-12:-4], "little")
    n_blocks = -(-size // BLOCK)
    if size + 4 * n_blocks + 12 != len(data):
        return f"has {len(data)} bytes, must have {size + 4 * n_blocks + 12}"
    if crc32c(data[size:-4]) != int.from_bytes(data[-4:], "little"):
        return "ends with checksums that are not those that were written"
    for k in range(n_blocks):
        stored = int.from_bytes(data[size + 4 * k : size + 4 * k + 4], "little")
        if crc32c(data[k * BLOCK : min(size, (k + 1) * BLOCK)]) != stored:
            return f"is damaged in block {k}"
    return ""


def checker(path: Path, say: Callable[[str], None] = print) -> Rules:
    """The rules for what is at a path; those of a kernel set for what says nothing else of itself."""
    if (path / "state.json").exists():
        return StateChecker(path, say)
    try:
        form = _json(path / "zarr.json")["attributes"]["format"]
    except (OSError, ValueError, KeyError, TypeError):
        form = FORMAT
    return (SavedChecker if form in SAVED or path.is_file() else Checker)(path, say)


def _alone(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata without the copies of others that a group's may hold."""
    return {key: value for key, value in metadata.items() if key != "consolidated_metadata"}


def main(arguments: list[str]) -> int:
    """Check each path; 0 if all of them are what FORMAT.md describes."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    good = True
    for argument in arguments:
        print(argument)
        good &= checker(Path(argument)).run()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
