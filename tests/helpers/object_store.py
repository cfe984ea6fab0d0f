"""A local object store for the duration of a test session."""

from unittest.mock import patch

import pytest


@pytest.fixture(scope="session")
def object_store(tmp_path_factory):
    """The environment that directs s3:// to a server in this process with one empty bucket, "data".

    All servers of a process share their buckets, so this fixture is imported in one place, the conftest of all tests.
    """
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    nothing = tmp_path_factory.mktemp("aws") / "none"
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(nothing),
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with patch.dict("os.environ", environment):
        from s3fs import S3FileSystem

        S3FileSystem.clear_instance_cache()  # those that tests before this one made have no credentials
        S3FileSystem(use_listings_cache=False).mkdir("data")
        yield environment
    server.stop()


@pytest.fixture
def s3(object_store, tmp_path):
    """A URL in the server, different for each test."""
    return f"s3://data/{tmp_path.name}"


@pytest.fixture
def bucket(tmp_path):
    """A URL in the memory of this process, different for each test; faster, for tests that suit any store."""
    return f"memory://data/{tmp_path.name}"
