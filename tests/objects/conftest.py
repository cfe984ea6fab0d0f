"""Fixtures of the tests on an object store."""

from helpers.object_store import bucket, object_store, s3  # noqa: F401
