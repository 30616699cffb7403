"""Networks as exporters write them, from several libraries, and this engine's results for them."""
