"""The stage `query`: the model's operations as a graph, and what each device says of them."""
