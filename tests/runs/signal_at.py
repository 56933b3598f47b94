"""``gcr``, with one signal at a moment that an event gives, however fast the machine is.

``SIGNAL_AT="3 9 group MARK" python signal_at.py run seq-digits …``: signal 9 to the process group after the third
checkpoint of a process, unless the file MARK is there, which this makes. ``alone``: to that process; ``parent``: to the
one that started it. Worker processes import this file too.
"""

import os
import sys

from gcr.training.checkpoint import Checkpoints

count, number, whom, mark = os.environ.get("SIGNAL_AT", "0 0 nobody .").split()
saved = 0
save = Checkpoints.save


def save_and_signal(self, state):
    global saved
    save(self, state)
    saved += 1
    if saved == int(count) and not os.path.exists(mark):
        open(mark, "x").close()
        if whom == "group":
            os.killpg(0, int(number))
        else:
            os.kill(os.getpid() if whom == "alone" else os.getppid(), int(number))


Checkpoints.save = save_and_signal

if __name__ == "__main__":
    from gcr.cli.main import run_cli

    sys.exit(run_cli())
