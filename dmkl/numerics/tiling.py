"""The division of a matrix into square tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Tiling:
    """A rows × cols matrix cut into tiles of side `tile`; the last row and column of tiles may be ragged."""

    rows: int
    cols: int  # the shape of the matrix, in samples
    tile: int  # side of a tile, in samples
    upper: bool  # whether only the tiles on and above the diagonal exist (a symmetric matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """Tiles along the rows and along the columns."""
        return -(-self.rows // self.tile), -(-self.cols // self.tile)

    def row_slice(self, i: int) -> slice:
        """Rows of the matrix that the i-th row of tiles covers."""
        return slice(i * self.tile, min((i + 1) * self.tile, self.rows))

    def col_slice(self, j: int) -> slice:
        """Columns of the matrix that the j-th column of tiles covers."""
        return slice(j * self.tile, min((j + 1) * self.tile, self.cols))

    def tile_shape(self, i: int, j: int) -> tuple[int, int]:
        """Rows and columns of tile (i, j), without padding."""
        r, c = self.row_slice(i), self.col_slice(j)
        return r.stop - r.start, c.stop - c.start

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The tiles that exist, row by row."""
        n_i, n_j = self.shape
        for i in range(n_i):
            for j in range(i if self.upper else 0, n_j):
                yield i, j
