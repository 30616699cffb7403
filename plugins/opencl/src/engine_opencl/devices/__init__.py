"""Finding devices, what is known of them, and whether they do what they claim."""
