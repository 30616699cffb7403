"""`new_plugin`: writes the package of a new device, which compiles, infers, exports and passes every suite as it is.

    plan = PluginPlan("ACME", operators=("Conv", "Relu", "Add"), has_export=True)
    folder = new_plugin(plan, Path("engine-plugin-acme"))

The files are templates in `files/`, one for each file of the package. Writing needs Jinja, which the extra `plugin`
of `engine-sdk` installs.
"""

from engine.testing.scaffold.families import DEFAULT_OPERATORS
from engine.testing.scaffold.plan import PluginPlan
from engine.testing.scaffold.writing import new_plugin

__all__ = ["DEFAULT_OPERATORS", "PluginPlan", "new_plugin"]
