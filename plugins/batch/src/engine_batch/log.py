"""The logger `engine.batch`."""

import logging

logger = logging.getLogger("engine.batch")
