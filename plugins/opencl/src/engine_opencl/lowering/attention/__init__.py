"""Lowers Attention and the internal FusedAttention to two products with a softmax between them."""
