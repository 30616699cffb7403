"""The commands of `engine`, a module each; the last part of its name is that of the command."""
