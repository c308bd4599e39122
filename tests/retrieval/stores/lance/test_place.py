"""Locations of indexes on Lance, and the words of its errors."""

import pytest

from aleator.foundation import DamagedFileError
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance.place import Place, is_lance


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
    ("where", "writing", "error", "words"),
    [
        ("s3://bucket/name", True, ConnectionError, "check the bucket.*may or may not have happened"),
        ("s3://bucket/name", False, ConnectionError, "check the bucket"),
        ("lance:{}", True, OSError, "cannot write it.*free some space"),
        ("lance:{}", False, DamagedFileError, "Lance cannot read it.*open an older version"),
        ("lance:{}/nowhere", False, IndexGoneError, "the folder is not there any more"),
    ],
)
def test_errors_of_lance_mean_what_was_being_done_and_hold_no_secrets(where, writing, error, words, tmp_path):
    place = Place.parse(where.format(tmp_path), {"aws_secret_access_key": "hunter2hunter2"})
    with pytest.raises(error, match=words) as caught, place.calls(writing):
        raise RuntimeError("status: 403; signed with hunter2hunter2, location: Location { file: 1.rs }")
    assert "status: 403" in str(caught.value) or error is IndexGoneError
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_panic_of_lance_is_an_error_and_an_interruption_is_not(tmp_path):
    class Panic(BaseException):
        pass

    place = Place.parse(f"lance:{tmp_path}")
    with pytest.raises(DamagedFileError, match="out of range"), place.calls():
        raise Panic("index out of range")
    with pytest.raises(KeyboardInterrupt), place.calls():
        raise KeyboardInterrupt
