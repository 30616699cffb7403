"""Files that are written atomically, folders of caches, who can change a file (`permissions`), SHA-256 (`digest`)."""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.files.beside import file_beside
    from engine.files.caches import CacheFolder, ChoicesFile, user_cache_folder
    from engine.files.opening import ModelSource, SerializableModel, position_of, why_not_opened
    from engine.files.writing import complete_file, private_opener, write_file
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.files.beside": ["file_beside"],
        "engine.files.caches": ["CacheFolder", "ChoicesFile", "user_cache_folder"],
        "engine.files.opening": ["ModelSource", "SerializableModel", "position_of", "why_not_opened"],
        "engine.files.writing": ["complete_file", "private_opener", "write_file"],
    })  # fmt: skip

__all__ = [
    "CacheFolder", "ChoicesFile", "ModelSource", "SerializableModel", "complete_file", "file_beside", "position_of",
    "private_opener", "user_cache_folder", "why_not_opened", "write_file",
]  # fmt: skip
