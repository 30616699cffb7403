"""`python -m engine` is the command line `engine`."""

import sys

from engine.cli.main import main

sys.exit(main())
