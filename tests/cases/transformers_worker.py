"""One rank that loads models natively and from the daemons, and compares.

transformers_worker.py FOLDER RANK WORLD [CASE...] writes FOLDER/rank-R.json: case ->
null, or what differs.
"""

import json
import os
import pathlib
import sys
import traceback

import ckptd
import torch
import transformers
from transformers_cases import CASES, behaviour_of, difference, facts_of, generated_by

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()


def check(case, folder, rank, world, address):
    models = folder / "models"
    if rank == 0:
        case.save(models)
    if world > 1:
        torch.distributed.barrier()
    path = case.path(models)
    native, said = case.load(path, world)
    with ckptd.connect(address) as client:
        before = {checkpoint.name for checkpoint in client.list()}
        with ckptd.patch(address=address, timeout=60):
            ours, ours_said = case.load(path, world)
        note_held(folder, rank, case, ours, client, before)
    found = difference(facts_of(native), facts_of(ours), "model")
    found = found or difference(to_plain(said), to_plain(ours_said), "report")
    if world > 1:  # what runs a model talks to the other ranks: all of them or none
        every = [None] * world
        torch.distributed.all_gather_object(every, found)
        if any(every):
            return found or "it differs on another rank"
    alone = case.parallel == "pp"
    found = found or difference(behaviour_of(native, alone), behaviour_of(ours, alone), "behaviour")
    if not found and world == 1 and native.can_generate() and not native.config.is_encoder_decoder:
        found = difference(generated_by(native), generated_by(ours), "words")
    return found


def note_held(folder, rank, case, model, client, before):
    """Bytes of this rank's parts of parameters, and what daemons did for them, for a test to compare."""
    parts = [getattr(p, "_local_tensor", p) for p in model.parameters()]
    loads = [checkpoint for checkpoint in client.list() if checkpoint.name not in before]
    held = {
        "kept": sum(part.numel() * part.element_size() for part in parts),
        "slab": sum(load.slab_bytes for load in loads),
        "tensors": sum(load.tensor_count for load in loads),
        "read": sum(load.progress.storage_bytes for load in loads),
        "stored": sum(client.inspect(load.source).tensor_bytes for load in loads),
    }
    file = folder / f"held-{rank}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, case.name: held}))


def to_plain(report):
    return {key: sorted(map(str, value)) for key, value in report.items()}


def main():
    folder, rank, world = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    if world > 1:
        store = torch.distributed.FileStore(str(folder / "store"), world)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results = {}
    for case in CASES[world]:
        if sys.argv[4:] and case.name not in sys.argv[4:]:
            continue
        try:
            results[case.name] = check(case, folder, rank, world, os.environ["CKPTD_TEST_ADDRESS"])
        except Exception:  # told to the test by name
            results[case.name] = traceback.format_exc()
        (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    if world > 1:
        torch.distributed.destroy_process_group()


main()
