"""Packages' own code, end to end: with onnxruntime, and with `engine.session` in its place, on the same data.

`python -m publishing.own_code PACKAGE onnxruntime|engine` runs one scenario and prints the results of the package.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of a package with both.

    Attributes:
        name: of the package, with its version.
        calls: the functions that were called.
        result: "equal", how results differ, or why there are none.
        is_right: whether they are equal, or differ by rounding.
    """

    name: str
    calls: str
    result: str
    is_right: bool


def page_of_text() -> np.ndarray:
    """An image with lines of text, by OpenCV's own font."""
    import cv2

    image = np.full((240, 640, 3), 255, np.uint8)
    for index, line in enumerate(("Invoice 2026-1138", "Total: 1,204.50 EUR", "Thank you")):
        cv2.putText(image, line, (20, 60 + 70 * index), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 2)
    return image


def rapidocr() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(page_of_text())
    return [[box, text, score] for box, text, score in found]


def ddddocr() -> Any:
    import cv2
    import ddddocr as package

    _, png = cv2.imencode(".png", page_of_text()[20:80, 10:460])
    found = [package.DdddOcr(show_ad=False, old=old).classification(png.tobytes()) for old in (False, True)]
    return [*found, package.DdddOcr(det=True, ocr=False, show_ad=False).detection(png.tobytes())]


def magika() -> Any:
    from magika import Magika

    contents = (b"import os\n\n\ndef main():\n    print(os.name)\n" * 4, b'{"a": [1, 2, 3], "b": null}\n' * 9,
                b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8, b"#!/bin/sh\nset -e\necho hello\n" * 5)  # fmt: skip
    results = [Magika().identify_bytes(content) for content in contents]
    return [[str(each.output.label), float(each.score)] for each in results]


def nudenet() -> Any:
    from nudenet import NudeDetector

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:320, :480]
    smooth = 128 + 60 * np.sin(x / 40) + 40 * np.cos(y / 25)
    image = np.clip(smooth[..., None] + 8 * rng.standard_normal((320, 480, 3)), 0, 255).astype(np.uint8)
    detector = NudeDetector()
    outputs = detector.onnx_session.run(None, {detector.input_name: image[None, :320, :320].transpose(0, 3, 1, 2)
                                               .astype(np.float32) / 255})  # fmt: skip
    return [detector.detect(image), [float(each) for each in outputs[0].mean(axis=-1).ravel()]]


def silero() -> Any:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    time_axis = np.arange(3 * 16000) / 16000
    tones = sum(np.sin(2 * np.pi * 140 * k * time_axis) / k for k in range(1, 8))
    audio = torch.from_numpy((0.2 * tones * (time_axis % 1 < 0.6)).astype(np.float32))
    model = load_silero_vad(onnx=True)
    found = [model(audio[begin : begin + 512], 16000).item() for begin in range(0, 15 * 512, 512)]
    model.reset_states()
    found += [model(audio[begin : begin + 256], 8000).item() for begin in range(0, 15 * 256, 256)]
    return [found, get_speech_timestamps(audio, load_silero_vad(onnx=True), threshold=0.3)]


SCENARIOS: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "rapidocr-onnxruntime": (rapidocr, "RapidOCR() on an image of three lines: boxes, texts, scores"),
    "ddddocr": (ddddocr, "classification with both models, detection"),
    "magika": (magika, "identify_bytes on four files: labels, scores"),
    "nudenet": (nudenet, "NudeDetector().detect, and its session's outputs"),
    "silero-vad": (silero, "the model at 16 and 8 kHz chunk by chunk, get_speech_timestamps"),
}


def is_installed(name: str) -> bool:
    """Whether a package can be run here."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def compared(name: str, in_process: Callable[[str, Sequence[str], int], Any]) -> Compared:
    """Run one package in two processes."""
    results = [in_process("publishing.own_code", [name, runtime], _SECONDS) for runtime in ("onnxruntime", "engine")]
    calls = SCENARIOS[name][1]
    if failed := next((each for each in results if isinstance(each, str)), ""):
        return Compared(name, calls, failed, False)
    first, second = results
    gap = gap_between(first["value"], second["value"])
    text = "other values" if gap is None else "equal" if not gap else f"numbers differ by {gap:.0e} at most"
    times = f"; {first['seconds']:.2f} s of CPU time with onnxruntime, {second['seconds']:.2f} s with this engine"
    return Compared(f"{name} {first['version']}", calls, text + times, gap is not None and gap < 1e-3)


def gap_between(one: Any, other: Any) -> float | None:
    """The largest difference of numbers, relative to numbers above 1; None if anything else differs."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        gaps = [gap_between(a, b) for a, b in zip(one, other, strict=True)]
        return None if None in gaps else max(gaps, default=0.0)
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return gap_between(list(one.values()), list(other.values()))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(1.0, abs(one))
    return 0.0 if one == other else None


def main() -> None:
    name, runtime = sys.argv[1:]
    warnings.simplefilter("ignore")
    if runtime == "engine":
        from engine.session import replace_onnxruntime

        replace_onnxruntime()
    value = SCENARIOS[name][0]()
    print(json.dumps({"value": value, "version": version(name), "seconds": time.process_time()}, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    main()
