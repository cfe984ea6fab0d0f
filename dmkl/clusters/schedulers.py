"""Connecting to a running scheduler by its address or by the file that it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dmkl.clusters.local import quiet
from dmkl.errors import NoWorkersError, refuse

if TYPE_CHECKING:
    from distributed import Client, Security

_CONNECT_SECONDS = 10


@contextmanager
def connected(
    where: str, *, tls_ca: str | None = None, tls_cert: str | None = None, tls_key: str | None = None
) -> Iterator[Client]:
    """Compute on the workers of the scheduler at the address, or in the scheduler file, `where`."""
    from distributed import Client

    address = _address(where)
    security = security_of(tls_ca, tls_cert, tls_key)
    if address.startswith("tls://") and security is None:
        refuse(
            f"the scheduler at {address} needs certificates, and there are none: give tls_ca, tls_cert and "
            "tls_key (files in PEM format), or set them in Dask's configuration under distributed.comm.tls"
        )
    try:
        client = Client(address, timeout=f"{_CONNECT_SECONDS}s", security=security)
    except (OSError, ValueError) as error:
        msg = (
            f"no scheduler answers at {address} within {_CONNECT_SECONDS} s ({_cause(error)}). Start one with `dask "
            "scheduler`, check its address and the firewall, or compute on this machine with --cluster local"
        )
        raise NoWorkersError(msg) from error
    with quiet(), client:
        yield client


def _cause(error: BaseException) -> str:
    """The first error of a chain: a refused certificate causes a timeout."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def security_of(tls_ca: str | None, tls_cert: str | None, tls_key: str | None) -> Security | None:
    """The certificates of this process and of the authority that it trusts, from files or from Dask's configuration.

    None if there are no certificates. InputError if a file is missing, or is no certificate or key.
    """
    import ssl

    import dask
    from distributed import Security

    given = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    if not any(given.values()):
        configured = dask.config.get("distributed.comm.tls.ca-file", None)
        return Security() if configured else None
    for name, path in given.items():
        if path is None or not Path(path).expanduser().is_file():
            problem = "is missing" if path is None else f"is {path}, which is no file"
            refuse(f"tls_ca, tls_cert and tls_key are three files in PEM format, and {name} {problem}")
    ca, cert, key = (str(Path(str(path)).expanduser().absolute()) for path in given.values())
    roles = {
        f"tls_{role}_{kind}": path
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", cert), ("key", key))
    }
    security = Security(tls_ca_file=ca, require_encryption=True, **roles)
    try:
        security.get_connection_args("client")
    except (ssl.SSLError, OSError) as error:
        refuse(
            f"tls_ca, tls_cert and tls_key must be a certificate authority, a certificate and its key: {error}", error
        )
    return security


def _address(where: str) -> str:
    if Path(where).is_file():
        try:
            return str(json.loads(Path(where).read_text())["address"])
        except (ValueError, KeyError, TypeError) as error:
            refuse(
                f"--cluster {where}: this file is not one that a scheduler wrote (dask scheduler --scheduler-file)",
                error,
            )
    _, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        refuse(
            "--cluster takes 'local', 'threads', 'slurm' or another batch system, a .toml or .yaml file that describes "
            f"its jobs, the address of a scheduler such as tcp://host:8786, or the file that it wrote, got {where!r}"
        )
    return where
