"""The logger of the device."""

import logging

logger = logging.getLogger("engine.batch")
