"""What `hvdkit run` accepts and refuses, and what it hands to the script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_SECONDS

from hvdkit.engines.start import Host
from hvdkit.errors import LaunchError
from hvdkit.tools.launch.hosts import parse_hosts

TELL = """
import json
told = dict(argv=sys.argv, path=sys.path[0], name=__name__, file=__file__, engine=os.environ["HVDKIT_ENGINE"],
            threads=os.environ.get("OMP_NUM_THREADS"), mkl=os.environ.get("MKL_NUM_THREADS"), rank=rank)
print(json.dumps(told))
"""
ODD = ["--a", "b c", "", "$HOME", "it's", '"q"', "new\nline", "ü", "a\\b", "-np", "--engine=x", "--", "*"]


def told(done):
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda each: each["rank"])


def refused(done):
    """Return the only line that a refused command prints."""
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("hvdkit: error: ")
    return line.removeprefix("hvdkit: error: ")


def test_arguments_come_to_the_script_untouched(launch, engine):
    script = launch.script(TELL, "sub/tell.py")
    ranks = told(launch("-np", 2, "--engine", engine, script, *ODD))
    assert [each["rank"] for each in ranks] == [0, 1]
    for each in ranks:
        assert each["argv"] == [script, *ODD]
        assert each["path"] == str(launch.folder / "sub")
        assert each["file"] == str(launch.folder / script)
        assert each["name"] == "__main__"
        assert each["engine"] == engine


def test_a_module_runs_as_python_runs_it(launch, engine):
    launch.script(TELL, "package/__main__.py")
    launch.script("", "package/__init__.py")
    for each in told(launch("-np", 2, "--engine", engine, "-m", "package", "--x", "1")):
        assert each["argv"] == [str(launch.folder / "package/__main__.py"), "--x", "1"]
        assert each["name"] == "__main__"


def test_f07_plain_python_and_one_process_see_the_same(launch):
    script = launch.script("""
import json, multiprocessing
def square(number): return number * number
if __name__ == "__main__":
    spawned = multiprocessing.get_context("spawn").Pool(1).map(square, [2, 3])
    is_main = vars(sys.modules["__main__"]) is globals()
    print(json.dumps([sys.argv, sys.path, __file__, str(__spec__), spawned, is_main]))
""")
    command = [sys.executable, script, "--x"]
    plain = subprocess.run(
        command,
        cwd=launch.folder,
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    done = launch("-np", 1, script, "--x")
    assert done.stdout == f"[0] {plain.stdout}"


def test_threads_are_divided_unless_the_user_set_them(launch):
    script = launch.script(TELL)
    cores = len(os.sched_getaffinity(0))
    assert {each["threads"] for each in told(launch("-np", 2, "--engine", "mpi", script))} == {str(max(1, cores // 2))}
    assert {each["threads"] for each in told(launch("-np", 1, script))} == {str(cores)}
    own = told(launch("-np", 2, "--engine", "mpi", script, env={"OMP_NUM_THREADS": "5"}))
    assert {each["threads"] for each in own} == {"5"}
    mkl = told(launch("-np", 2, "--engine", "mpi", script, env={"MKL_NUM_THREADS": "3"}))
    assert {(each["threads"], each["mkl"]) for each in mkl} == {(None, "3")}


def test_a_job_starts_where_home_is_not_set(launch, engine, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    more_than_cores = len(os.sched_getaffinity(0)) + 1
    assert len(told(launch("-np", more_than_cores, "--engine", engine, launch.script(TELL)))) == more_than_cores


@pytest.mark.mpi
def test_mpi_starts_in_plain_python_where_home_is_not_set(launch, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.delenv("HOME", raising=False)
    program = "from hvdkit.engines.mpi.engine import MpiEngine; print(MpiEngine().size)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=launch.environment(), capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_the_engine_and_the_reason_are_said_once(launch):
    done = launch("-np", 1, launch.script(""))
    assert done.stderr == "hvdkit: engine serial (one process needs no other), 1 process by python\n"


@pytest.mark.mpi
def test_auto_takes_what_is_installed(launch):
    pytest.importorskip("mpi4py")
    done = launch("-np", 2, launch.script(TELL), "--framework", "tf", env={"PYTHONPATH": str(blind(launch))})
    assert {each["engine"] for each in told(done)} == {"mpi"}


def blind(launch):
    """Return a search path on which Horovod cannot be found."""
    folder = launch.folder / "blind"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'horovod' else find(name, package)\n"
    )
    return f"{folder}{os.pathsep}{Path(__file__).parents[2]}"


def test_the_launcher_imports_no_framework(launch):
    code = (
        "import sys, hvdkit.tools.launch.command as c\n"
        "from hvdkit.engines.choice import choose_to_start\n"
        "choose_to_start('auto', 2, None)\n"
        "print(sorted({'torch', 'tensorflow', 'keras', 'jax', 'horovod', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_script_that_does_not_exist(launch):
    assert refused(launch("-np", 2, "nowhere.py")) == "script 'nowhere.py' does not exist"
    assert "without 'python'" in refused(launch("-np", 2, "python", "script.py"))
    assert refused(launch("-np", 2)) == "no script given; write: hvdkit run -np 2 script.py"


def test_module_that_does_not_exist(launch):
    done = launch("-np", 1, "-m", "nowhere.at_all")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("hvdkit: error: rank 0: no module named 'nowhere'")


def test_unknown_engine(launch):
    message = refused(launch("-np", 2, "--engine", "warp", launch.script("")))
    assert message == "engine 'warp' is unknown; use auto, serial, horovod, torch, mpi"


def test_other_bad_options(launch):
    script = launch.script("")
    assert "at least 1" in refused(launch("-np", 0, script))
    assert "use -np 1 or another engine" in refused(launch("-np", 2, "--engine", "serial", script))
    assert "use gloo or mpi" in refused(launch("-np", 1, "--controller", "tcp", script))
    assert "use torch, tf or keras" in refused(launch("-np", 1, "--framework", "mxnet", script))
    assert "for engine horovod" in refused(launch("-np", 1, "--controller", "gloo", script))


def test_more_processes_than_slots(launch):
    message = refused(launch("-np", 4, "-H", "localhost:2", launch.script("")))
    assert message == "-H localhost:2: 2 slots for 4 processes; give it localhost:4, or -np 2"


@pytest.mark.parametrize(
    ("hosts", "right"),
    [
        ("localhost", "write -H localhost:2"),
        ("localhost:1", "give it localhost:2, or -np 1"),
        ("localhost:1 localhost:1", "separate hosts by commas, without blanks: -H localhost:1,localhost:1"),
        ("localhost:1,localhost:1", "write localhost:2 once"),
        ("localhost:0", "for example -H localhost:2"),
        ("localhost:2,", "for example -H localhost:2"),
        ("localhost:two", "for example -H localhost:2"),
    ],
)
def test_f01_bad_host_lists_are_shown_the_right_form(hosts, right):
    with pytest.raises(LaunchError) as caught:
        parse_hosts(hosts, 2)
    assert str(caught.value).endswith(right)
    assert "\n" not in str(caught.value)


def test_f01_the_right_form_works(launch, engine):
    done = launch("-np", 2, "-H", "localhost:2", "--engine", engine, launch.script("print(rank)\n"))
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    assert parse_hosts("a:3,b:2,c:4", 4) == [Host("a", 3), Host("b", 1)]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_this_host_is_recognised(name):
    assert Host(name, 1).is_here
    assert not Host("192.0.2.7", 1).is_here


def test_other_hosts_are_refused_with_the_commands(launch, engine):
    if engine == "horovod":
        pytest.skip("horovodrun reaches other hosts")
    script = launch.script("")
    done = launch("-np", 3, "-H", "192.0.2.1:2,192.0.2.2:1", "--engine", engine, script, "--lr", "a b")
    assert done.returncode == 1
    first, *commands = done.stderr.splitlines()
    assert first.startswith(f"hvdkit: error: engine {engine} starts processes on this host only")
    assert all(command.endswith("script.py --lr 'a b'") for command in commands)
    assert len(commands) == {"torch": 2, "mpi": 1}[engine]
    if engine == "torch":
        assert "--nnodes=2 --node-rank=1 --nproc-per-node=1 --master-addr=192.0.2.1" in commands[1]
    else:
        assert "mpirun -np 3 -H 192.0.2.1:2,192.0.2.2:1" in commands[0]


def test_a02_a_horovod_without_any_extension_is_refused_before_the_start(launch):
    launch.script("", "site/horovod/__init__.py")
    script = launch.script("print(rank)\n")
    path = os.pathsep.join((str(launch.folder / "site"), launch.environment()["PYTHONPATH"]))
    done = launch("-np", 2, "--engine", "horovod", script, env={"PYTHONPATH": path})
    assert refused(done) == (
        "engine horovod: this Horovod was built for no framework; rebuild it with: hvdkit build-horovod"
    )
