"""The tests of the plugin are skipped where its distribution is not installed."""

from engine import Core

collect_ignore_glob = [] if "ONNXRUNTIME" in Core().installed_devices else ["test_*.py"]
