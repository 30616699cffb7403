"""The command line `engine`: `commands` has a module for each, which parses arguments and prints results."""
