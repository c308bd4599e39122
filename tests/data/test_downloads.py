"""Downloads, from files in place of a network."""

import io
import socket
import tarfile
import threading
import urllib.response

import pytest

from aleator.data import downloads


def offer(monkeypatch, tmp_path, content: bytes, md5: str | None = None, members=(), url: str = ""):
    origin = tmp_path / "origin"
    origin.write_bytes(content)
    source = downloads.RemoteFile(url or origin.as_uri(), "set", md5, members)
    monkeypatch.setitem(downloads.DATA_SETS, "cifar10", (source,))
    return tmp_path / "data"


def archive_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"../../{name}")  # where such an archive would like to write
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_downloads_are_unpacked_once(monkeypatch, tmp_path):
    folder = offer(monkeypatch, tmp_path, archive_of(a=b"1", b=b"2", c=b"3"), members=("b", "a"))
    added = downloads.download(folder, ["cifar10"])
    assert [path.read_bytes() for path in added] == [b"2", b"1"]
    assert sorted(path.name for path in folder.rglob("*")) == ["a", "b", "set"]
    assert downloads.download(folder, ["cifar10"]) == []


def test_a_damaged_download_leaves_nothing(monkeypatch, tmp_path):
    folder = offer(monkeypatch, tmp_path, b"half a file", md5="0" * 32)
    with pytest.raises(ValueError, match="11 bytes with MD5"):
        downloads.download(folder, ["cifar10"])
    assert not folder.exists()


def test_a_download_that_is_cut_off_leaves_nothing(monkeypatch, tmp_path):
    """Most files have no checksum here. Half of one would be kept for good."""
    folder = offer(monkeypatch, tmp_path, b"")

    response = urllib.response.addinfourl(io.BytesIO(b"x" * 400), {"Content-Length": "1000"}, "http://nowhere")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: response)
    with pytest.raises(ConnectionError, match="cut off after 400 of 1000 bytes"):
        downloads.download(folder, ["cifar10"])
    assert not folder.exists()


def test_a_download_in_parts_that_is_cut_off_leaves_nothing(monkeypatch, tmp_path):
    """A server that does not know the size sends parts, each after its length. The last one ends early."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 400)

        folder = offer(monkeypatch, tmp_path, b"", url=f"http://127.0.0.1:{server.getsockname()[1]}/file")
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match="could not be fetched"):
            downloads.download(folder, ["cifar10"])
        thread.join()
    assert not folder.exists()


def test_no_network_is_said_plainly(monkeypatch, tmp_path):
    folder = offer(monkeypatch, tmp_path, b"")
    (tmp_path / "origin").unlink()
    with pytest.raises(ConnectionError, match=r"could not be fetched.*put the file into .*data yourself"):
        downloads.download(folder, ["cifar10"])
    with pytest.raises(ValueError, match="names = 'mnist'"):
        downloads.download(folder, ["mnist"])
