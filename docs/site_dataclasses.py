"""The documentation site's view of dataclasses: `engine.startup.dataclass` adds the constructor of `dataclasses`."""

from __future__ import annotations

from typing import Any

from griffe import Class, ExprCall, ExprName, Extension


class Dataclasses(Extension):
    """Rename the decorator, since the reader of the sources knows only the one of the standard library."""

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        """See `Extension`."""
        for decorator in cls.decorators:
            if decorator.callable_path != "engine.startup.dataclass":
                continue
            name = ExprName("dataclasses.dataclass")
            if isinstance(decorator.value, ExprCall):
                decorator.value.function = name
            else:
                decorator.value = name
