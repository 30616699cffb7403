"""`python -m engine` is the command line `engine`."""

import sys

from engine.tools.main import main

sys.exit(main())
