"""Results of every kind: saving, reading, showing, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.damage import flip

import dmkl
from dmkl.errors import InputError, StoreError, StoreExistsError
from dmkl.store.saved import Result


class Count(Result):
    FORMAT, TITLE = "dmkl-test-count", "count"
    NEEDED, MEANINGS = ("times",), {"times": "how often", "kernel": "kernel"}

    def summary(self):
        return f"{int(self.data.times.sum())} times <in all>\n{self.n_passes_:g} passes"


@pytest.fixture
def count():
    coords = {"kernel": ["rna", "<b>noise"]}
    return Count(xr.Dataset({"times": ("kernel", np.array([3, 4]))}, coords, {"n_passes": 7.0}))


def test_what_was_saved_is_read(count, tmp_path):
    count.save(tmp_path / "count")
    read = dmkl.load(tmp_path / "count")
    xr.testing.assert_identical(read.data, count.data)
    assert read.data.times.attrs == {"long_name": "how often", "units": "1"}
    assert type(read) is Count
    with xr.open_zarr(tmp_path / "count") as opened:
        assert opened.times.values.tolist() == [3, 4]


def test_it_shows_itself_as_text_and_as_html(count):
    assert repr(count) == "7 times <in all>\n7 passes"
    assert count._repr_html_().startswith("<div>7 times &lt;in all&gt;<br>7 passes</div>")


def test_data_that_lack_a_variable_are_refused():
    with pytest.raises(InputError, match="the data of a count must have times, found nothing"):
        Count(xr.Dataset())


def test_nothing_is_replaced_unasked(count, tmp_path):
    count.save(tmp_path / "count")
    with pytest.raises(StoreExistsError):
        count.save(tmp_path / "count")
    count.save(tmp_path / "count", overwrite=True)
    assert dmkl.load(tmp_path / "count").n_passes_ == 7


def test_damage_is_noticed(count, tmp_path):
    count.save(tmp_path / "count")
    chunk = next(path for path in (tmp_path / "count" / "times" / "c").rglob("*") if path.is_file())
    flip(chunk, 3, 4)
    with pytest.raises(StoreError, match=r"the count at .* is damaged"):
        dmkl.load(tmp_path / "count")
