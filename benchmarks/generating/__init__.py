"""Language models with seeded weights, and the engines that generate tokens with them."""
