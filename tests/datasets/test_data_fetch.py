"""Fetching: once per folder, checked, retried, and one message for all that waited."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_server import CountingServer
from limits import HANG_SECONDS

from hvdkit.datasets.digits import _DEBIAN_FASHION
from hvdkit.datasets.fetch import download, fetch_source
from hvdkit.datasets.sources import SOURCES, Source
from hvdkit.errors import DataError

PROCESSES = 4
CONTENT = bytes(range(256)) * 20_000  # 5 MB, several chunks

# what a rank does: wait for the others to be there, fetch, read the whole file
RANK = """
import hashlib, sys, time
from pathlib import Path
from hvdkit.datasets.fetch import fetch_source
from hvdkit.datasets.sources import Source
from hvdkit.errors import DataError
rank, processes, url, folder, ready, expected = sys.argv[1:]
Path(ready, rank).touch()
while len(list(Path(ready).iterdir())) < int(processes):
    time.sleep(0.01)
try:
    fetched = fetch_source("small", Source(url, {"small.bin": expected}), Path(folder))
except DataError as error:
    sys.exit(f"error: {error}")
assert hashlib.sha256(Path(folder, "small.bin").read_bytes()).hexdigest() == expected
print(fetched)
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def serve(server: CountingServer, name: str, content: bytes) -> None:
    Path(server.RequestHandlerClass.keywords["directory"], name).write_bytes(content)  # type: ignore[attr-defined]


@pytest.fixture
def run_ranks(server: CountingServer, tmp_path: Path) -> Callable[[], list[tuple[int, str, str]]]:
    """Run the rank script in four processes at once; returns code, standard output and error of each."""

    def run() -> list[tuple[int, str, str]]:
        ready = tmp_path / f"ready{time.monotonic_ns()}"
        ready.mkdir()
        arguments = [str(PROCESSES), server.url, str(tmp_path / "data"), str(ready), sha256(CONTENT)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(PROCESSES)
        ]
        try:
            outputs = [rank.communicate(timeout=HANG_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        return [(rank.returncode, out.strip(), err.strip()) for rank, (out, err) in zip(ranks, outputs, strict=True)]

    return run


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.mark.processes
def test_g01_four_processes_make_one_request(server, run_ranks, tmp_path) -> None:
    serve(server, "small.bin", CONTENT)
    results = run_ranks()
    assert [code for code, _, _ in results] == [0] * PROCESSES, results
    assert sorted(out for _, out, _ in results) == ["False"] * 3 + ["True"]
    assert server.requests == {"/small.bin": 1}
    assert visible(tmp_path / "data") == ["small.bin"]


@pytest.mark.processes
@pytest.mark.parametrize("trouble", ["fail", "cut"])
def test_g01_server_that_fails_once_is_asked_once_more(server, run_ranks, tmp_path, trouble) -> None:
    serve(server, "small.bin", CONTENT)
    setattr(server, trouble, 1)
    results = run_ranks()
    assert [code for code, _, _ in results] == [0] * PROCESSES, results
    assert server.requests == {"/small.bin": 2}
    assert visible(tmp_path / "data") == ["small.bin"]


@pytest.mark.processes
def test_g01_failure_of_the_one_that_fetches_reaches_all(server, run_ranks, tmp_path) -> None:
    server.fail = 10**6
    results = run_ranks()
    assert [code for code, _, _ in results] == [1] * PROCESSES
    messages = {err for _, _, err in results}
    assert len(messages) == 1
    assert "small.bin: HTTP 503 Service Unavailable (3 attempts); name a mirror" in messages.pop()
    assert server.requests == {"/small.bin": 3}
    # a later run is not held up by the failure that an earlier one left
    serve(server, "small.bin", CONTENT)
    server.fail = 0
    results = run_ranks()
    assert [code for code, _, _ in results] == [0] * PROCESSES, results
    assert server.requests == {"/small.bin": 4}
    assert visible(tmp_path / "data") == ["small.bin"]


def test_killed_while_fetching_leaves_nothing_that_counts(server, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".small.bin.part").write_bytes(CONTENT[:1000])
    serve(server, "small.bin", CONTENT)
    assert fetch_source("small", Source(server.url, {"small.bin": sha256(CONTENT)}), tmp_path / "data")
    assert (tmp_path / "data" / "small.bin").read_bytes() == CONTENT
    assert visible(tmp_path / "data") == ["small.bin"]


def test_wrong_content_is_refused_and_not_asked_for_again(server, tmp_path) -> None:
    serve(server, "train-images-idx3-ubyte.gz", b"something else")
    with pytest.raises(DataError, match="is not the expected file: its sha256 differs"):
        download("mnist", tmp_path / "data", server.url)
    assert server.requests == {"/train-images-idx3-ubyte.gz": 1}
    assert visible(tmp_path / "data") == [".mnist.failed"]


def test_missing_file_is_not_asked_for_again(server, tmp_path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: HTTP 404 .* \(1 attempt\)"):
        download("fashion_mnist", tmp_path / "data", server.url)
    assert sum(server.requests.values()) == 1


def test_a_file_of_ones_own_is_never_overwritten(server, tmp_path) -> None:
    own = tmp_path / "t10k-labels-idx1-ubyte.gz"
    own.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is there but is another file; delete it"):
        download("mnist", tmp_path, server.url)
    assert own.read_bytes() == b"mine"
    assert not server.requests


def test_unknown_set_and_folder_that_cannot_be_made(tmp_path) -> None:
    with pytest.raises(DataError, match="no data set 'svhn' to fetch; there are mnist, fashion_mnist, cifar10"):
        download("svhn", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write mnist into"):
        download("mnist", tmp_path / "file")


def archive_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_archive_is_unpacked_without_what_does_not_belong(server, tmp_path) -> None:
    content = archive_of(
        {"set/a.bin": b"aaaa", "../../escape.bin": b"bad!", "set/readme.html": b"?", "set/b.bin": b"bbb"}
    )
    serve(server, "set.tar.gz", content)
    source = Source(server.url, {"set.tar.gz": sha256(content)}, {"a.bin": 4, "b.bin": 3})
    assert fetch_source("set", source, tmp_path / "data")
    assert visible(tmp_path / "data") == ["a.bin", "b.bin"]
    assert (tmp_path / "data" / "b.bin").read_bytes() == b"bbb"
    assert not fetch_source("set", source, tmp_path / "data")
    assert server.requests == {"/set.tar.gz": 1}


def test_archive_that_lacks_a_member_or_is_none_is_refused(server, tmp_path) -> None:
    for content, expected in ((archive_of({"set/a.bin": b"aaaa"}), "lacks b.bin"), (b"no archive", "cannot unpack")):
        serve(server, "set.tar.gz", content)
        source = Source(server.url, {"set.tar.gz": sha256(content)}, {"a.bin": 4, "b.bin": 3})
        with pytest.raises(DataError, match=expected):
            fetch_source("set", source, tmp_path / expected.replace(" ", "-"))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hvdkit.datasets", *arguments], capture_output=True, text=True, timeout=HANG_SECONDS
    )


@pytest.mark.processes
def test_command_ends_in_one_line_and_code_1(server, tmp_path) -> None:
    done = command("cifar10", "--data-dir", str(tmp_path / "data"), "--url", server.url)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"hvdkit: error: cannot fetch {server.url}cifar-10-binary.tar.gz: HTTP 404")
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_command_refuses_an_unknown_name_and_names_the_known() -> None:
    done = command("svhn", "--data-dir", "nowhere")
    assert done.returncode == 2
    assert "'mnist', 'fashion_mnist', 'cifar10'" in done.stderr


def upstream_gzip(path: Path, mtime: int) -> bytes:
    """Undo what Debian did to the original file: put its name and date back into the gzip header."""
    content = path.read_bytes()
    flags_with_name = b"\x1f\x8b\x08\x08"
    return flags_with_name + mtime.to_bytes(4, "little") + content[8:10] + path.stem.encode() + b"\0" + content[10:]


@pytest.mark.processes
@pytest.mark.skipif(not _DEBIAN_FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_command_fetches_the_real_fashion_mnist_once(server, tmp_path) -> None:
    # the dates in the original files' headers, on 31 August 2017
    for name in SOURCES["fashion_mnist"].files:
        mtime = 1504176606 if name.startswith("train") else 1504176627
        serve(server, name, upstream_gzip(_DEBIAN_FASHION / name, mtime))
    arguments = ("fashion_mnist", "--data-dir", str(tmp_path / "data"), "--url", server.url.rstrip("/"))
    first, second = command(*arguments), command(*arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == f"fashion_mnist is in {tmp_path / 'data'}"
    assert second.stdout.strip() == f"fashion_mnist was already in {tmp_path / 'data'}"
    assert sorted(server.requests.values()) == [1] * 4
    assert visible(tmp_path / "data") == sorted(SOURCES["fashion_mnist"].files)
