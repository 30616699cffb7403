"""The distributions installed for the engine (`installed`), and the plugins of a core (`plugins`).

Nothing is imported here: `installed` needs the standard library and `engine.startup` alone.
"""
