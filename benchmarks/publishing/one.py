"""A process that checks one model: `python -m publishing.one FOLDER MODEL DEVICES` prints a JSON object."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from publishing.check import check


def main() -> None:
    warnings.simplefilter("ignore")
    folder, path, devices = sys.argv[1:]
    found = check(Path(folder), Path(path), devices.split(";"))
    print(json.dumps(found.to_json()))


if __name__ == "__main__":
    main()
