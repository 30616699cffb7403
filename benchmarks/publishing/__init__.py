"""Models of published packages: fetching them, their inputs, what this engine does with them, and the page."""
