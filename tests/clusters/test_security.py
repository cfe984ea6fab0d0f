"""Schedulers that are reached by certificates."""

from __future__ import annotations

import asyncio
import stat
import sys

import dask
import pytest
from distributed import Scheduler, Worker

import dmkl
from dmkl.cli.main import main
from dmkl.clusters.certificates import make_certificates
from dmkl.clusters.schedulers import security_of
from dmkl.errors import InputError, NoWorkersError, StoreExistsError

NAMES = ("tls_ca", "tls_cert", "tls_key")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder / "ours"), make_certificates(folder / "others")


@pytest.fixture(scope="module")
def secure(certificates):
    """The address of a scheduler with a worker, in this process, that take our certificates alone."""
    from distributed.utils import LoopRunner

    security = security_of(**certificates[0])
    runner = LoopRunner(asynchronous=False)
    runner.start()

    async def start():
        listening = {"host": "127.0.0.1", "protocol": "tls", "security": security, "dashboard_address": "127.0.0.1:0"}
        scheduler = await Scheduler(**listening)
        return scheduler, await Worker(scheduler.address, **listening)

    scheduler, worker = runner.run_sync(start)
    yield scheduler.address
    runner.run_sync(lambda: asyncio.wait_for(worker.close(), 10))
    runner.run_sync(lambda: asyncio.wait_for(scheduler.close(), 10))
    runner.stop()


def test_a_scheduler_is_reached_by_certificates(secure, certificates, stored):
    with dmkl.cluster(secure, **certificates[0]) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    keys = ("distributed.comm.tls.ca-file", "distributed.comm.tls.client.cert", "distributed.comm.tls.client.key")
    with dask.config.set(dict(zip(keys, certificates[0].values(), strict=True))), dmkl.cluster(secure) as client:
        assert client.submit(sum, [1, 2]).result() == 3


def test_a_wrong_certificate_is_refused(secure, certificates, monkeypatch):
    monkeypatch.setattr("dmkl.clusters.schedulers._CONNECT_SECONDS", 1)
    with pytest.raises(NoWorkersError, match=r"no scheduler answers at tls://.*CERTIFICATE_VERIFY_FAILED"):
        dmkl.cluster(secure, **certificates[1]).__enter__()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"reached by certificates, and there are none: give tls_ca, tls_cert and tls_key"),
        ({"tls_ca": __file__}, r"three files in PEM format, and tls_cert is missing"),
        ({"tls_ca": "/nosuch", "tls_cert": __file__, "tls_key": __file__}, r"tls_ca is /nosuch, which is no file"),
        (dict.fromkeys(NAMES, __file__), r"must be a certificate authority, a certificate and its key"),
    ],
)
def test_certificates_that_are_missing_or_none(given, told):
    with pytest.raises(InputError, match=told):
        dmkl.cluster("tls://127.0.0.1:1", **given).__enter__()


def test_the_command_makes_certificates_that_are_private_and_tells_what_to_copy(tmp_path, capsys):
    folder = tmp_path / "tls"
    assert main(["certificates", str(folder)]) == 0
    told = capsys.readouterr().out
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    given = {name: folder / f"{name.removeprefix('tls_')}.pem" for name in NAMES}
    assert sorted(folder.iterdir()) == sorted(given.values())
    for name, path in given.items():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f'{name} = "{path}"\n' in told
    assert security_of(**{name: str(path) for name, path in given.items()}) is not None
    with pytest.raises(StoreExistsError, match="exists already"):
        make_certificates(folder)


def test_without_its_package_no_certificates_are_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InputError, match=r"pip install 'dmkl\[tls\]'"):
        make_certificates(tmp_path / "tls")
    assert not (tmp_path / "tls").exists()
