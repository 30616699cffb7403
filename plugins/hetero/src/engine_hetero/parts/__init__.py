"""The stage `parts`: each subgraph as a model."""
