"""Networks as exporters write them, from several libraries, and what this engine makes of them."""
