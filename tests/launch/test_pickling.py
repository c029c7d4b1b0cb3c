"""A function travels to other processes with what it uses, or the refusal names what cannot."""

from __future__ import annotations

import pickle
import threading

import pytest

from hvdkit.errors import LaunchError
from hvdkit.tools.launch.pickling import pack

LOCK = threading.Lock()


def test_a_closure_travels_with_its_arguments():
    offset = 3
    function, args, kwargs = pickle.loads(pack(lambda a, b: a + b + offset, [1], {"b": 2}))
    assert function(*args, **kwargs) == 6


def test_a_variable_of_a_function_is_named():
    lock = threading.Lock()

    def inner():
        return lock

    def outer():
        return inner()

    with pytest.raises(LaunchError, match=r"^variable 'lock' \(used in 'inner'\), a lock, cannot be sent"):
        pack(outer, [], {})


def test_an_argument_is_named():
    with pytest.raises(LaunchError, match=r"^argument 1, a lock, cannot be sent to other processes \(.*\); make it"):
        pack(print, [1, LOCK], {})
    with pytest.raises(LaunchError, match=r"^argument 'guard', a lock, cannot be sent"):
        pack(print, [], {"guard": LOCK})


def test_a_default_is_named():
    def function(guard=LOCK):
        return guard

    with pytest.raises(LaunchError, match=r"^variable 'default value' \(used in 'function'\), a lock, cannot be sent"):
        pack(function, [], {})
