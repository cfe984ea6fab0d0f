"""`dmkl certificates`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dmkl.cli.options import option
from dmkl.cli.output import say

__all__ = ["certificates"]


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the files, seen by all nodes.")],
    days: Annotated[int, option("How long they are valid.", "N", min=1, max=3650)] = 365,
) -> None:
    """Make certificates by which a scheduler, its workers and their client know one another.

    A certificate authority of your own, one certificate and its key, in files that you alone can read. Who lacks them
    can neither connect to a scheduler that asks for them nor read what is sent. Needs `pip install 'dmkl[tls]'`.

    Examples
    --------
        dmkl certificates ~/dmkl-tls
    """
    from dmkl.clusters.certificates import make_certificates

    made = make_certificates(folder.expanduser().absolute(), days)
    say("In the table [cluster] of a job file, or in a cluster's .toml file:", style="bold")
    for name, path in made.items():
        say(f'{name} = "{path}"')
    say("On the command line:", style="bold")
    say(f'--cluster "slurm {" ".join(f"{name}={path}" for name, path in made.items())}"')
    ca, cert, key = made.values()
    say("Of a scheduler and its workers that you start yourself:", style="bold")
    say(f"dask scheduler --protocol tls --tls-ca-file {ca} --tls-cert {cert} --tls-key {key}")
    say(f"dask worker --protocol tls --tls-ca-file {ca} --tls-cert {cert} --tls-key {key} --scheduler-file FILE")
