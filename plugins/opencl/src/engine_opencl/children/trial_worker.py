"""The child process in which kernels are compiled and run for the first time: a driver may abort it.

Run as a script: each batch is one line of JSON, and each step of it is answered by a line, so that the parent knows the
step at which the child ended. It imports nothing of the engine, so that it starts quickly.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    """Answer batches until the input ends."""
    # Drivers print to standard output, which must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        batch = json.loads(line)
        sys.path[:] = batch["paths"]
        device = _Device(batch)
        for item in batch["items"]:
            _answer(answers, begin=item["key"])
            _answer(answers, **device.tried(item))


class _Device:
    def __init__(self, batch: dict[str, Any]) -> None:
        import pyopencl as cl

        warnings.simplefilter("ignore", cl.CompilerWarning)
        self.cl = cl
        self.device = cl.get_platforms()[batch["platform"]].get_devices()[batch["device"]]
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)
        self.options = batch["options"]

    def tried(self, item: dict[str, Any]) -> dict[str, str]:
        """The program of one source, compiled, or loaded from a usable binary."""
        refused = ""
        uncached: Any = False  # the parent stores the binary
        try:
            if item["binary"]:
                try:
                    binary = base64.b64decode(item["binary"])
                    program = self.cl.Program(self.context, [self.device], [binary]).build(self.options)
                    refused = self._differs(program, item["launches"])
                except self.cl.Error as e:
                    refused = str(e)
            if not item["binary"] or refused:
                program = self.cl.Program(self.context, item["source"]).build(self.options, cache_dir=uncached)
            note = "; ".join(filter(None, (self._launched(program, launch) for launch in item["launches"])))
            made = program.get_info(self.cl.program_info.BINARIES)[0]
        except self.cl.Error as e:
            return {"failed": str(e), "refused": refused}
        return {"done": base64.b64encode(made).decode(), "refused": refused, "note": note}

    def _differs(self, program: Any, launches: list[dict[str, Any]]) -> str:
        """Why a program belongs to another source; empty if it does not."""
        for launch in launches:
            taken, given = self.cl.Kernel(program, launch["kernel"]).num_args, len(launch["arguments"])
            if taken != given:
                return f"its {launch['kernel']} takes {taken} arguments, expected {given}"
        return ""

    def _launched(self, program: Any, launch: dict[str, Any]) -> str:
        """Run a kernel on zeros; launch errors are reported later by the process that uses the kernel."""
        import numpy as np

        kernel = self.cl.Kernel(program, launch["kernel"])
        sizes = [value for kind, value in launch["arguments"] if kind == "buffer"]
        if sum(sizes) > self.device.global_mem_size // 8 or max(sizes, default=0) > self.device.max_mem_alloc_size:
            return f"{launch['kernel']} was compiled but not run: its buffers take {sum(sizes)} bytes"
        held = []  # a kernel does not keep its arguments
        try:
            for position, (kind, value) in enumerate(launch["arguments"]):
                if kind == "buffer":
                    buffer = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, max(value, 1))
                    self.cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint8), 0, max(value, 1))
                    kernel.set_arg(position, buffer)
                    held.append(buffer)
                else:
                    kernel.set_arg(position, np.dtype(kind).type(value))
            self.cl.enqueue_nd_range_kernel(self.queue, kernel, launch["global"], launch["local"] or None)
            self.queue.finish()
        except self.cl.Error as e:
            return f"{launch['kernel']} was compiled but not run: {e}"
        return ""


def _answer(stream: Any, **fields: str) -> None:
    stream.write(json.dumps(fields) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
