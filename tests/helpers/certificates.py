"""Certificates of a scheduler, its workers and their client, for tests."""

from __future__ import annotations

from pathlib import Path

from distributed import Security


def make_certificates(folder: Path) -> dict[str, str]:
    """A self-signed certificate, which is its own authority, and its key, by the options of `dmkl.cluster`."""
    made = Security.temporary()
    texts = {"tls_ca": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    return {name: str(folder / f"{name}.pem") for name in texts}
