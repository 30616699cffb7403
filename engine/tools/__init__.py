"""The command line `engine`: one file a command, which parses arguments and prints; the library does the work."""
