"""The build steps that pyproject.toml cannot express: a clean build folder, and the native core."""

import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent / "csrc"))
import native_build


class CleanBuild(build_py):
    """Build in an empty folder: setuptools would keep and install modules deleted since the last build."""

    def run(self) -> None:
        """Empty the build folder, then copy the modules into it."""
        if not self.editable_mode and Path(self.build_lib).exists():
            shutil.rmtree(self.build_lib)
        super().run()


class NativeBuild(build_ext):
    """Compile each kernel file once for every instruction set, which setuptools cannot do."""

    def build_extension(self, ext: Extension) -> None:
        """Compile what has changed and link the extension module."""
        import pybind11

        include = [sysconfig.get_path("include"), pybind11.get_include()]
        try:
            native_build.build_extension(Path(self.get_ext_fullpath(ext.name)), include)
        except native_build.BuildError as error:
            raise CompileError(str(error)) from None

    def copy_extensions_to_source(self) -> None:
        """Put the module beside the sources, for an editable install; renaming keeps it valid in running processes."""
        for ext in self.extensions:
            file = self.get_ext_filename(ext.name)
            built, target = Path(self.build_lib) / file, Path(__file__).resolve().parent / file
            written = target.with_name(f"{target.name}.tmp")
            try:
                with native_build.named_disk(target.parent):
                    shutil.copy2(built, written)
            except native_build.BuildError as error:
                raise CompileError(str(error)) from None
            written.replace(target)


setup(
    cmdclass={"build_py": CleanBuild, "build_ext": NativeBuild},
    ext_modules=[Extension("engine._core", sources=[])],
)
