"""The tables of docs/performance.md from the results of `benchmarks/gpu_check.sh` on a GPU.

python -m comparison.gpu_page FOLDER      # from the folder benchmarks; FOLDER has the files that the script wrote
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from comparison.report import markdown

NETWORKS: Final = {
    "bert_base, batch 1": "bert_base, 128 tokens", "gpt2_blocks, batch 1": "gpt2_blocks, 64 tokens",
    "vit_b16, batch 1": "vit_b16", "unet, batch 1": "unet",
}  # fmt: skip
"""The names of the page, where they differ."""


def page(folder: Path) -> str:
    """The text to paste: the machine, what was checked, the figures, and a note on missing ones."""
    steps = [line.split("\t") for line in (folder / "steps.tsv").read_text(encoding="utf-8").splitlines()]
    parts = [f"Checked by `benchmarks/gpu_check.sh` on {_device(folder)}:"]
    parts.append(markdown(["step", "outcome", "s", "what it said"], [list(map(_cell, row)) for row in steps]))
    faults = _read(folder / "faults.json")
    if faults:
        parts.append(markdown(["what a driver may not survive", "outcome"], [[n, _cell(t)] for n, t in faults.items()]))
    if hetero := _read(folder / "hetero.json"):
        rows = [
            [r["network"], r["placement"], " and ".join(r["devices"]), f"{r['milliseconds']:.2f}", f"{r['error']:.1e}"]
            for r in hetero
        ]
        parts.append(markdown(["HETERO:OPENCL,CPU", "placement", "runs on", "ms", "error"], rows))
    measured = _read(folder / "measured.json")
    parts += _measured(measured) if measured else ["Nothing was measured."]
    return "\n\n".join(parts) + "\n"


def _device(folder: Path) -> str:
    file = folder / "device.txt"
    return file.read_text(encoding="utf-8").strip() if file.exists() else "no device that was found"


def _measured(found: dict[str, Any]) -> list[str]:
    """The three tables, in ms; "-" where an engine has no figure."""
    names = {case["name"] for case in found["cases"]}
    by_name = {case["name"]: case for case in found["cases"]}
    networks = sorted({n.rpartition(", ")[0] for n in names if ", batch " in n}, key=_in_order(found))
    header32 = ["OPENCL f32", "its kernels", "PyTorch f32, on the device", "PyTorch TF32, on the device"]
    header16 = ["OPENCL f16", "its kernels", "PyTorch f16, on the device"]
    rows32, rows16 = [], []
    for name in networks:
        title = NETWORKS.get(name, name)
        if case := by_name.get(f"{name}, f32"):
            rows32.append([title, *_ours(case), _peer(case, "PyTorch f32"), _peer(case, "PyTorch TF32")])
        if case := by_name.get(f"{name}, f16"):
            rows16.append([title, *_ours(case), _peer(case, "PyTorch f16")])
    parts = [markdown(["case", *header32], rows32), markdown(["case", *header16], rows16)]
    products = []
    for name in (n for n in by_name if n.startswith("product of size ") and n.endswith(", f32")):
        size = name.removeprefix("product of size ").removesuffix(", f32")
        in_f32, in_f16 = by_name[name], by_name.get(f"product of size {size}, f16")
        of_peak = f"{_speed(in_f32) / found['peak']:.0%}" if found["peak"] else "-"
        row = [size, _teraflops(in_f32), of_peak, _teraflops(in_f32, "PyTorch f32")]
        products.append([*row, *(_teraflops(in_f16, *engine) for engine in ((), ("PyTorch f16",)))])
    if products:
        peak = f"of the peak ({found['peak'] / 1e3:.1f})"
        header = ["product of size", "f32, TFLOP/s", peak, "PyTorch f32", "f16", "PyTorch f16"]
        parts.append(markdown(header, products))
    whole = [
        [case["name"], engine, f"{ms:.2f}", _number(case["resident"].get(engine))]
        for case in found["cases"]
        if case["name"].startswith("ResNet-50, ")
        for engine, ms in case["milliseconds"].items()
    ]
    if whole:
        parts.append(markdown(["the same weights", "engine", "host to host", "on the device"], whole))
    parts += dict.fromkeys(note for case in found["cases"] for note in case["notes"])
    errors = [f"{case['name']} deviates by {case['error']:.1e}" for case in found["cases"] if not case["error"] < 1e-2]
    parts += [f"WRONG: {', '.join(errors)}"] if errors else []
    if found["left"]:
        parts.append(f"Not measured, for lack of time: {'; '.join(found['left'])}.")
    return parts


def _in_order(found: dict[str, Any]) -> Any:
    order = [case["name"].rpartition(", ")[0] for case in found["cases"]]
    return order.index


def _ours(case: dict[str, Any]) -> list[str]:
    device = next(iter(case["milliseconds"]))
    return [f"{case['milliseconds'][device]:.2f}", _number(case["resident"].get(device))]


def _peer(case: dict[str, Any], name: str) -> str:
    return _number(case["resident"].get(name))


def _speed(case: dict[str, Any], engine: str | None = None) -> float:
    """GFLOP/s on the device; for OPENCL, its kernels'."""
    return float(case["operations"]) / case["resident"][engine or next(iter(case["milliseconds"]))] / 1e6


def _teraflops(case: dict[str, Any] | None, engine: str | None = None) -> str:
    if case is None or (engine is not None and engine not in case["resident"]):
        return "-"
    return f"{_speed(case, engine) / 1e3:.1f}"


def _number(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def main(arguments: Sequence[str]) -> None:
    print(page(Path(arguments[0])), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
