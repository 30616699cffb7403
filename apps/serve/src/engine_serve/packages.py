"""Checks that KServe and its dependencies are installed, and imports it without letting it read the command line."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings

from engine.errors import UnsupportedError

_PACKAGES = ("kserve", "fastapi", "uvicorn", "grpc", "prometheus_client")


def require_packages() -> None:
    """Import KServe. Raises `UnsupportedError`, which says what to install, if a package is missing."""
    # KServe parses the command line of the process when it is imported, and would exit on options that are not its own.
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about deprecated names that the packages use from each other
            for package in _PACKAGES:
                importlib.import_module(package)
            importlib.import_module("kserve.model_server")
    except ImportError as e:
        raise UnsupportedError(f"serving needs packages that are not installed ({e}): pip install engine-serve") from e
    finally:
        sys.argv = arguments
    logging.getLogger("kserve").setLevel(logging.WARNING)
