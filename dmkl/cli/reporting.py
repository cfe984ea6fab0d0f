"""`dmkl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dmkl.cli.options import Overwrite, option
from dmkl.cli.output import claim_output, say

__all__ = ["report"]


def report(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A model or a result, at a folder or URL.")],
    output: Annotated[Path, option("Where to write the page.", "FILE", "--output", "-o")] = Path("report.html"),
    overwrite: Overwrite = False,
) -> None:
    """Tell of a model or a result on one page of HTML: the answer, how sure it is, pictures, how to do it again.

    The page stands alone, and can be read on a phone and printed.

    Examples
    --------
        dmkl report found -o found.html
        dmkl report model.zarr
    """
    import dmkl

    claim_output(output, overwrite=overwrite)
    dmkl.report(dmkl.load(path), output)
    say(f"Saved in {output}; open it in a browser.")
