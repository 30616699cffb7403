"""The stage `wiring`: the connections between the parts."""
