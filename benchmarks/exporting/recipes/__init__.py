"""One small function for each architecture, by domain; importing this package needs no exporter."""
