"""Reads headgate.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.model.errors import ConfigurationError as ConfigurationError
from dispatcher.settings.yaml_file import read_document
from headgate.deployment.model import NAME, Deployment

NAME_CHARS_MAX = 40


def load(path: Path, name: str | None = None, region: str | None = None) -> Deployment:
    """Read and validate the file. `name` takes the place of the name in the file. `region`: of the environment, for a
    file that names none. Raises ConfigurationError."""
    deployment = read_document(path).parse(Deployment, {"region": region})
    return deployment if name is None else _rename(deployment, name)


def _rename(deployment: Deployment, name: str) -> Deployment:
    """Return the deployment with another name. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"the stack cannot have the name {name[:NAME_CHARS_MAX]!r}: use at most 32 lower-case letters, digits and "
            "hyphens, with a letter first"
        )
    return deployment.model_copy(update={"name": name})
