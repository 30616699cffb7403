"""Finding devices, their properties, and tests of their claims."""
