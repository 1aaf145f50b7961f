"""The main job's trainer where PyTorch has no CUDA: memory of fake GPUs is taken for the host's."""

import pathlib
import runpy
import sys

HERE = pathlib.Path(__file__).resolve()
MAIN_JOB = HERE.parents[2] / "deploy" / "main_job"
sys.path[:0] = [str(MAIN_JOB), str(HERE.parent)]

if __name__ == "__main__":
    import host_view

    host_view.install()
    runpy.run_path(str(MAIN_JOB / "train.py"), run_name="__main__")
