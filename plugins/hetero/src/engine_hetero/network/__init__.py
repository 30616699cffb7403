"""The stage `network`: each part compiled on its device, and inferences over all of them."""
