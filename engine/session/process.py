"""Functions of onnxruntime that concern a whole process, and have nothing to do here."""

from __future__ import annotations


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: this engine logs through `logging`, below the logger `engine`."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: set the level of the logger `engine` instead."""


def disable_telemetry_events() -> None:
    """Do nothing: this engine sends nothing."""


def enable_telemetry_events() -> None:
    """Do nothing: this engine sends nothing."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing: plugins load their libraries when they are used."""
