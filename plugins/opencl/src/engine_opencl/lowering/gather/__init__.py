"""Lowers the operators that read or write elements at given indices, such as Gather and ScatterND."""
