"""The logger `engine.isolated`."""

import logging

logger = logging.getLogger("engine.isolated")
