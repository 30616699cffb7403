"""Models of published packages: fetching them, their inputs, this engine's results for them, and the page."""
