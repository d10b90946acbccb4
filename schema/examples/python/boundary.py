"""Where a test stops a program: at the boundary between two steps. Without these variables it does nothing.

KILL_AT=NAME   the process dies there, as by kill -9
PAUSE_AT=NAME  it says so and waits there, until a signal comes
"""

import os
import signal
import sys


def boundary(name):
    if os.environ.get("KILL_AT") == name:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("PAUSE_AT") == name:
        print(f"paused at {name}", flush=True)
        while True:
            signal.pause()
