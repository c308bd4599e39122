"""Locations of indexes on Lance, and the words of its errors."""

import pytest

from aleator.foundation import DamagedFileError
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance.place import ConflictError, Place, is_lance


@pytest.mark.parametrize(
    ("location", "uri", "version"),
    [
        ("lance:gallery/", "gallery", None),
        ("lance:/data/gallery#12", "/data/gallery", 12),
        ("s3://bucket/name", "s3://bucket/name", None),
        ("s3://bucket/some/name/#3", "s3://bucket/some/name", 3),
        ("lance:gs://bucket/name", "gs://bucket/name", None),
    ],
)
def test_a_location_is_taken_apart_and_put_together(location, uri, version):
    assert is_lance(location)
    place = Place.parse(location)
    assert (place.uri, place.version) == (uri, version)
    assert Place.parse(place.location) == place


@pytest.mark.parametrize(
    "location", ["lance:", "lance:/", "s3://", "s3://bucket", "s3://bucket/", "s3://bucket/name#new", "lance:ftp://x/y"]
)
def test_a_location_that_names_no_place_is_refused(location):
    with pytest.raises(ValueError, match="write lance:folder/"):
        Place.parse(location)


def test_credentials_in_a_location_are_refused_and_not_shown():
    with pytest.raises(ValueError, match="set the credentials in the environment") as caught:
        Place.parse("s3://ann:hunter2@bucket/name")
    assert "hunter2" not in str(caught.value)


def test_folders_and_other_urls_are_not_on_lance(tmp_path):
    assert not any(map(is_lance, ["gallery/", "postgresql://db/x", tmp_path, None]))


def test_an_endpoint_without_tls_in_the_environment_is_allowed(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert "allow_http" not in Place.parse("s3://bucket/name").options
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert Place.parse("s3://bucket/name").options["allow_http"] == "true"
    assert Place.parse("s3://bucket/name", {"allow_http": "false"}).options["allow_http"] == "false"


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ("Commit conflict for version 7", ConflictError, "others write"),
        ("IO error: No space left on device", OSError, "no space left"),
        ("status: 404 <Code>NoSuchBucket</Code>", ConnectionError, "no such bucket"),
        ("status: 403 <Code>AccessDenied</Code>", ConnectionError, "no permission"),
        ("error sending request: connect refused", ConnectionError, "does not answer"),
        ("LanceError(IO): Generic S3 error: Failed to resolve region for 'b'", ConnectionError, "does not answer"),
        ("Table 'ledger' was not found", IndexGoneError, "not there any more"),
        ("Version 3 no longer exists. Was it cleaned up?", IndexGoneError, "not there any more"),
        ("invalid magic number", DamagedFileError, "Lance cannot read"),
    ],
)
def test_errors_of_lance_are_translated_without_secrets(said, error, words):
    place = Place.parse("s3://bucket/name", {"aws_secret_access_key": "hunter2hunter2"})
    with pytest.raises(error, match=words) as caught, place.plain_errors():
        raise RuntimeError(f"{said}; signed with hunter2hunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
