"""Which hook of a plugin was running when its process died, as `hooks.HookWatch` has written it."""

from __future__ import annotations

from pathlib import Path


def hook_file(folder: Path, worker: str) -> Path:
    """Where the process of a worker of xdist names the running hook."""
    return folder / f"hook.{worker}"


def running_hook(path: Path) -> str:
    """The hook that was running when the process of a `HookWatch` died; empty if none was, or nothing is known."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def while_running(hook: str) -> str:
    """For messages: where the process died, given the `running_hook`."""
    return f"while the plugin's {hook} was running" if hook else "outside the plugin's hooks"
