"""A fixture that observes which kernels are computed from features."""

from collections import Counter

import pytest

from dmkl.features.tiles import FeatureTiles


@pytest.fixture
def computed(monkeypatch):
    """Counts the tiles that are computed, by (kernel name, tile row, tile column)."""
    stream, counts = FeatureTiles.stream, Counter()

    def counted(self, keys):
        made = [key for key in keys if not self.recipes[key[0]].function.startswith("mean-")]
        counts.update((self.names[k], i, j) for k, i, j in made)
        return stream(self, keys)

    monkeypatch.setattr(FeatureTiles, "stream", counted)
    return counts
