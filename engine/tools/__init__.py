"""The command line `engine`: one file per command, which only parses arguments and prints results."""
