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


FROM_A_WORKER = """Caught ValueError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "/lib/torch/utils/data/_utils/worker.py", line 358, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "train.py", line 7, in __getitem__
    raise ValueError("row 7 is broken")
ValueError: row 7 is broken
"""
FROM_A_GRAPH = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "train.py", line 3, in <module>

  File "train.py", line 9, in loss

ValueError: row 7 is broken
Traceback (most recent call last):

  File "/lib/tensorflow/python/ops/script_ops.py", line 270, in __call__
    ret = func(*args)

ValueError: row 7 is broken


\t [[{{node PyFunc}}]] [Op:__inference_12]"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FROM_A_WORKER, "ValueError: Caught ValueError in DataLoader worker process 1. ValueError: row 7 is broken"),
        (
            FROM_A_GRAPH,
            "ValueError: Graph execution error: ValueError: row 7 is broken ValueError: row 7 is broken "
            "[[{{node PyFunc}}]] [Op:__inference_12]",
        ),
        ('  File "only.py", line 1, in a stack\n', 'ValueError: File "only.py", line 1, in a stack'),
        ("", "ValueError"),
    ],
)
def test_s15_stacks_inside_an_error_are_left_out_of_its_line(text, line):
    assert failures.describe(ValueError(text)) == line


def test_s01_a_failure_is_recorded_though_the_folder_is_gone(folder):
    folder.rmdir()
    failures.record(OWN, 1, secondary=False)
    assert recorded(folder)["message"] == OWN
