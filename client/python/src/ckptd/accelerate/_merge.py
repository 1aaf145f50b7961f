"""accelerate's merge_fsdp_weights, done by ckptctl: streaming, and whole or not at all."""

import json
import os
import subprocess
from typing import NoReturn

from .. import _errors, _programs

# How accelerate's ValueError begins.
_NO_METADATA = "Tried to load from "


def merge_fsdp_weights(
    checkpoint_dir: str,
    output_path: str,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
) -> None:
    """Puts what the ranks saved of a model together into one file.

    accelerate's function, for SHARDED_STATE_DICT of FSDP1 and FSDP2, in bounded memory and without
    unpickling; and for files of single ranks. The main process does it, the others wait.

    checkpoint_dir: the folder that holds `.metadata`, such as `pytorch_model_fsdp_0`.
    output_path: the folder of the new `model.safetensors`, else of `pytorch_model.bin`; its parent
        is there. The file comes to be all at once.
    safe_serialization: write safetensors; else a file as of torch.save.
    remove_checkpoint_dir: remove `checkpoint_dir` afterwards.

    Raises ValueError where accelerate does, for a folder that is none; ckptd.Error for what
    ckptctl refuses; FileNotFoundError without the program ckptctl.
    """
    from accelerate.state import PartialState

    state = PartialState()
    if state.is_main_process:
        command = [_programs.find("ckptctl"), "merge", "--output=json", "--quiet"]
        if not safe_serialization:
            command.append("--unsafe-serialization")
        if remove_checkpoint_dir:
            command.append("--remove-checkpoint-dir")
        _run([*command, "--", os.fspath(checkpoint_dir), os.fspath(output_path)])
    state.wait_for_everyone()


def _run(command: list) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode != 0:
        _fail(command[0], done.returncode, done.stderr.decode("utf-8", "replace").strip())


def _fail(program: str, code: int, said: str) -> NoReturn:
    try:
        error = json.loads(said.splitlines()[-1])["error"]
    except (IndexError, ValueError, KeyError):
        raise _errors.Unknown(f"merging: {program} ended with code {code}: {said or 'it said nothing'}") from None
    if error["message"].startswith(_NO_METADATA):
        raise ValueError(error["message"])
    kinds = {kind.code: number for number, kind in _errors.BY_NUMBER.items()}
    raise _errors.make(kinds.get(error["code"], 2), error["message"], error["reason"], error["facts"])
