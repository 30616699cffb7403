"""A fork server loads this before it forks workers: the network, from the blob that the environment names."""

import gc
import os

from engine import Core
from sharing.worker import run

network = Core().import_model(os.environ["SHARED_BLOB"], config={"ENABLE_MMAP": True})
run(network, int(os.environ["SHARED_LENGTH"]))
gc.freeze()  # the collector would write to each object, and so copy its page
