"""Settings of workers of all backends: certificates, their allocator, and quiet logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dmkl.errors import refuse

if TYPE_CHECKING:
    from distributed import Security

REUSE_OF_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**26, "MALLOC_MMAP_THRESHOLD_": 2**25}
"""Environment of worker processes: their allocator keeps up to 64 MiB of freed memory for new arrays. Dask's default is
64 KiB, so that the system zeroes new pages for every array: 40 % of the CPU time of products with a basis."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Dask's logs of tasks that an interrupt abandons, and of a lost scheduler: dmkl has its own message."""
    loggers = [logging.getLogger(name) for name in ("asyncio", "distributed.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


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
