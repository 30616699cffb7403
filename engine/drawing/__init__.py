"""Drawing: graph layout, the SVG elements that pictures of models and placements share, and tables."""
