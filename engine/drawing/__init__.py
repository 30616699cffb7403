"""Pictures as text: positions for the nodes of a graph, and the SVG that pictures of models and placements share."""
