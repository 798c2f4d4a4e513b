"""Each client's own environment: a venv or a folder of Node packages, kept between runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.catalogue import Client

INSTALL_S = 900.0
ROOT = Path(__file__).parents[2]


class InstallError(Exception):
    """A client's environment could not be made. The message is the last line of what the installer printed."""


@dataclass(frozen=True)
class Environments:
    """`folder`: where the environments are. `uv`: its path; empty: pip installs. `torch_index`: empty: pip's own."""

    folder: Path
    uv: str
    torch_version: str
    torch_index: str

    def prepare(self, client: Client) -> list[str]:
        """Install what the client requires, unless it is there. Return the command that runs its script.

        Raises InstallError.
        """
        if client.venv:
            return self._existing(client)
        home, stamp = self.folder / client.name, self.folder / client.name / "installed.json"
        wanted = json.dumps([client.requirements, self.torch_version if client.torch else ""])
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            self._install(client, home)
            stamp.write_text(wanted)
        if client.runtime == "node":
            copied = shutil.copy(client.script_path, home)
            return ["node", str(copied)]
        return [str(home / "bin" / "python"), str(client.script_path)]

    def _existing(self, client: Client) -> list[str]:
        python = ROOT / client.venv / "bin" / "python"
        if not python.exists():
            raise InstallError(f"{client.venv} does not exist; `make test-vllm` makes it")
        return [str(python), str(client.script_path)]

    def _install(self, client: Client, home: Path) -> None:
        if client.runtime == "node":
            (home / "package.json").write_text('{"private": true, "type": "module"}\n')
            _run("npm", "install", "--prefix", str(home), "--silent", "--no-audit", "--no-fund", *client.requirements)
            return
        python = str(home / "bin" / "python")
        with_pip = client.torch or not self.uv
        if with_pip:
            _run(sys.executable, "-m", "venv", str(home))
        else:
            _run(self.uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home))
        if client.torch:
            self._install_torch(python)
        if self.uv:
            _run(self.uv, "pip", "install", "--quiet", "--python", python, *client.requirements)
        else:
            _run(python, "-m", "pip", "install", "-qq", *client.requirements)

    def _install_torch(self, python: str) -> None:
        """Install torch's CPU build from pip's own index, or else from `torch_index`, without its dependencies."""
        install = [python, "-m", "pip", "install", "-qq", "--no-deps"]
        try:
            _run(*install, f"torch=={self.torch_version}+cpu")
        except InstallError:
            if not self.torch_index:
                raise
            _run(*install, f"torch=={self.torch_version}", "--index-url", self.torch_index)


def _run(*command: str) -> None:
    """Run an installer. Raises InstallError if it fails, takes more than INSTALL_S seconds or does not exist."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except FileNotFoundError as error:
        raise InstallError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"the installation took more than {INSTALL_S:.0f} s") from error
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        raise InstallError(lines[-1].strip() if lines else f"{command[0]} ended with status {ran.returncode}")
