"""Certificates of a scheduler, its workers and its client, for tests."""

from __future__ import annotations

from pathlib import Path

from distributed import Security


def make_certificates(folder: Path) -> dict[str, str]:
    """Write a self-signed certificate, also used as its authority, and its key; return options of `dmkl.cluster`."""
    made = Security.temporary()
    texts = {"tls_ca": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    return {name: str(folder / f"{name}.pem") for name in texts}
