"""What a rank leaves behind when it fails."""

from __future__ import annotations

import json
import threading

import pytest

from hvdkit.process import failures

OWN, OTHER = "data_dir /data is not a folder" * 3, "rank 1 failed: data_dir /data is not a folder"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HVDKIT_FAILURE_DIR", str(tmp_path))
    monkeypatch.setattr(failures._Here, "rank", 0)
    return tmp_path


def recorded(folder):
    (path,) = folder.iterdir()
    return json.loads(path.read_text())


def test_s17_two_threads_that_record_at_once_leave_one_whole_record(folder):
    for _ in range(200):
        start = threading.Barrier(2)
        problems = []

        def write(message, secondary, start=start, problems=problems):
            start.wait()
            try:
                failures.record(message, 1, secondary=secondary)
            except OSError as error:
                problems.append(error)

        threads = [threading.Thread(target=write, args=case) for case in ((OWN, False), (OTHER, True))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert recorded(folder)["message"] == OWN
        next(folder.iterdir()).unlink()


def test_another_rank_s_failure_does_not_replace_the_own_one(folder):
    failures.record(OWN, 1, secondary=False)
    failures.record(OTHER, 1, secondary=True)
    assert recorded(folder)["message"] == OWN
