"""The other process, an application of the engine: `python -m engine_isolated.program CALLS SIGNALS FAULTS PARENT`.

The arguments are descriptors of two connections and of the file for tracebacks of crashes, and the number of the
process that started it, with which it ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from engine import Core
from engine_isolated.service import Service
from engine_isolated.wire import Connection

_SET_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl."""
_END_SECONDS: Final = 1.5
"""How long the end may take once nobody is connected."""


def main(arguments: list[str]) -> None:
    """Serve until the application closes the connections, or ends."""
    calls, signals, faults, parent = map(int, arguments)
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the application decides what Ctrl-C ends
    faulthandler.enable(faults, all_threads=False)
    for fd in (calls, signals, faults):
        os.set_inheritable(fd, False)
    core = Core()
    service = Service(core, lambda given: _add(core, given))
    listener = Connection(socket.socket(fileno=signals))
    threading.Thread(target=_listen, args=(service, listener), name="signals", daemon=True).start()
    service.serve(Connection(socket.socket(fileno=calls)))


def _end_with(parent: int) -> None:
    """Have the system kill this process when the one that started it ends, in whatever way."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _listen(service: Service, connection: Connection) -> None:
    service.listen(connection)
    time.sleep(_END_SECONDS)
    os._exit(0)  # something still runs, and nobody waits for it


def _add(core: Core, given: Mapping[str, Any]) -> None:
    """Add the extensions, and register the plugins in place of installed ones of the same names."""
    for source in given["extensions"]:
        core.add_extension(source)
    for name, target in given["plugins"].items():
        if name in core.installed_devices:
            core.unload_plugin(name)
        core.register_plugin(name, target)


if __name__ == "__main__":
    main(sys.argv[1:])
