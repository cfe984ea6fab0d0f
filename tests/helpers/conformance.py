"""The conformance checker of storage/, and functions to compare and change stores."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import zarr

STORAGE = Path(__file__).parents[2] / "storage"

_spec = importlib.util.spec_from_file_location("check_store", STORAGE / "check_store.py")
check_store = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_store)


def problems(path):
    """The rules of the format that the store at `path` violates, with details, as one text."""
    lines = []
    good = check_store.checker(Path(path), lines.append).run()
    assert good == (not any(line.startswith("FAIL") for line in lines))
    return "" if good else "\n".join(line for line in lines if not line.startswith("ok"))


def unseal(path, **attributes):
    """Change attributes of a Zarr group (None removes one), and remove its checksum and consolidated metadata."""
    file = Path(path) / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata.pop("consolidated_metadata", None)
    changed = {"metadata_crc32c": None, **attributes}
    kept = {name: value for name, value in metadata["attributes"].items() if name not in changed}
    metadata["attributes"] = kept | {name: value for name, value in changed.items() if value is not None}
    file.write_text(json.dumps(metadata))


def recode(path, tile, **codecs):
    """Rewrite the tiles of a symmetric set with other codecs."""
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    held = group["gram_upper"][...]
    shape = {"shape": held.shape, "chunks": (1, tile, tile), "dimension_names": ("kernel", "sample", "sample_2")}
    filled = {"dtype": held.dtype, "fill_value": np.nan, "filters": None, "overwrite": True}
    new = group.create_array("gram_upper", **shape, **filled, **codecs)
    for row in range(0, held.shape[1], tile):
        new[:, row : row + tile, row:] = held[:, row : row + tile, row:]
    unseal(path)


def tree(path):
    """The content of every file below `path`."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()}
