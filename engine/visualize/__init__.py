"""Graphs of models as plain data, and the files in which they are drawn."""

from engine.visualize.answers import answered_graph
from engine.visualize.files import SUFFIXES, write_graph, write_unused
from engine.visualize.model_graph import GraphOptions, model_graph
from engine.visualize.network_graph import network_graph

__all__ = ["SUFFIXES", "GraphOptions", "answered_graph", "model_graph", "network_graph", "write_graph", "write_unused"]
