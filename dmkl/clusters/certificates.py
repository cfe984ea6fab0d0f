"""Making a certificate authority and a certificate of it, for the scheduler, the workers and the client of one user."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from dmkl.errors import InputError, StoreExistsError

__all__ = ["make_certificates"]


def make_certificates(folder: Path, days: int = 365) -> dict[str, str]:
    """Make a new folder (mode 0700) with three files (mode 0600) in PEM format, valid for so many days.

    The key of the authority is thrown away: nobody can make further certificates of it.

    Returns
    -------
    dict
        The paths of the files, by the options of `dmkl.cluster` that take them: tls_ca, tls_cert, tls_key.

    Raises
    ------
    StoreExistsError
        If the folder exists.
    InputError
        If the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        msg = "certificates are made by the package cryptography, which is not installed; pip install 'dmkl[tls]'"
        raise InputError(msg) from error

    def signed(name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of nodes differ
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=authority,
                    crl_sign=authority,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        return made.sign(root, hashes.SHA256())

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dmkl certificate authority")])
    pem = serialization.Encoding.PEM
    files = {
        "tls_ca": signed("dmkl certificate authority", root, authority=True).public_bytes(pem),
        "tls_cert": signed("dmkl", own, authority=False).public_bytes(pem),
        "tls_key": own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    }
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        msg = f"{folder} exists already; certificates in it may be in use, so choose another folder or remove it"
        raise StoreExistsError(msg) from error
    return {name: _write(folder / f"{name.removeprefix('tls_')}.pem", data) for name, data in files.items()}


def _write(path: Path, data: bytes) -> str:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return str(path)
