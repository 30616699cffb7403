"""The build step that pyproject.toml cannot express."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class CleanBuild(build_py):
    """Build from an empty folder: setuptools keeps and installs modules deleted since the last build."""

    def run(self) -> None:
        """Empty the build folder, then copy the modules into it."""
        if not self.editable_mode and Path(self.build_lib).exists():
            shutil.rmtree(self.build_lib)
        super().run()


setup(cmdclass={"build_py": CleanBuild})
