"""The commands of `engine`, a module each; the last part of its name is the command's name."""
