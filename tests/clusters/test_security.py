"""Schedulers that require certificates."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import dask
import pytest
from helpers.certificates import make_certificates
from helpers.references import local_cluster

import dmkl
from dmkl.clusters.workers import security_of
from dmkl.errors import InputError, NoWorkersError

NAMES = ("tls_ca", "tls_cert", "tls_key")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder / "ours"), make_certificates(folder / "others")


@pytest.fixture(scope="module")
def secure(certificates):
    """The address of a scheduler with a worker in this process; both accept our certificates alone."""
    security = security_of(**certificates[0])
    with local_cluster(1, processes=False, protocol="tls", security=security) as running:
        yield running.scheduler_address


def test_a_scheduler_is_reached_by_its_certificates_alone(secure, certificates, monkeypatch):
    with dmkl.cluster(secure, **certificates[0]) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    keys = ("distributed.comm.tls.ca-file", "distributed.comm.tls.client.cert", "distributed.comm.tls.client.key")
    with dask.config.set(dict(zip(keys, certificates[0].values(), strict=True))), dmkl.cluster(secure) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    monkeypatch.setattr("dmkl.clusters.backends._CONNECT_SECONDS", 1)
    with pytest.raises(NoWorkersError, match=r"no scheduler answers at tls://.*CERTIFICATE_VERIFY_FAILED"):
        dmkl.cluster(secure, **certificates[1]).__enter__()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"needs certificates, and there are none: give tls_ca, tls_cert and tls_key"),
        ({"tls_ca": "/nosuch", "tls_cert": __file__, "tls_key": __file__}, r"tls_ca is /nosuch, which is no file"),
        (dict.fromkeys(NAMES, __file__), r"must be a certificate authority, a certificate and its key"),
    ],
)
def test_certificates_that_are_missing_or_none(given, words):
    with pytest.raises(InputError, match=words):
        dmkl.cluster("tls://127.0.0.1:1", **given).__enter__()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_lines_of_the_readme_make_certificates(tmp_path):
    text = (Path(__file__).parents[2] / "deploy" / "README.md").read_text()
    lines = re.search(r"(?m)^      umask 077\n(?:      .*\n)+", text)[0]
    subprocess.run(["bash", "-euc", lines], check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})
    files = {name: tmp_path / "dmkl-tls" / f"{name.removeprefix('tls_')}.pem" for name in NAMES}
    assert files["tls_key"].stat().st_mode & 0o777 == 0o600
    assert security_of(**{name: str(path) for name, path in files.items()}) is not None
