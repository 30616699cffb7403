"""The command line `engine`: `commands` has a module for each, which parses arguments and prints results.

Below it, `benchmark`, `diff` and `health` do the work of the commands of these names (`health`: `engine doctor`).
"""
