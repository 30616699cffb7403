"""The kinds of segments of a program: what each runs, and how it is made from nodes."""
