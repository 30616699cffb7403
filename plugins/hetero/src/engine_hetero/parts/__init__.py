"""The parts of a divided model: as models, as networks, and in a blob with a certificate of acyclicity."""
