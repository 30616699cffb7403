"""How the parts of one inference run: bindings, turns, requests."""
