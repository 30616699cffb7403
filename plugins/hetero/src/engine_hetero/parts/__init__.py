"""The parts of a divided model: as models, as networks, and in a blob with the proof that they can run."""
