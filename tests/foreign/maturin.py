"""Stands for safetensors' build backend while pip fetches its source: its tests need no build."""

import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    """Writes the least that pip wants to know of a source before it hands it over."""
    name = "safetensors-0.dist-info"
    os.mkdir(os.path.join(folder, name))
    version = os.environ["CKPTD_FOREIGN_VERSION"]
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: safetensors\nVersion: {version}\n")
    return name
