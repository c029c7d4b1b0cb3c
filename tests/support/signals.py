"""What a test process hands down to the processes that it starts."""

import signal


def hear_all() -> None:
    """Let them hear signals that this one ignores, as it does in the background or under nohup.

    What a process ignores its children ignore; a handler of its own they do not inherit.
    """
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)
