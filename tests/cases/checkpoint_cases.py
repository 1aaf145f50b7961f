"""Models, checkpoints and calls for load_checkpoint_in_model, and all that a caller can see of one."""

import json
import os
import pathlib
from dataclasses import dataclass, field

import torch
from safetensors.torch import save_file
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False)
        self.norm = nn.LayerNorm(width)


class Model(nn.Module):
    """Ties, buffers of each kind, a parameter of the root, frozen ones, integers and a scalar."""

    def __init__(self, tied=True, width=8):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(3))
        self.stats = nn.BatchNorm1d(width)  # float buffers and an integer one
        self.head = nn.Linear(width, 11, bias=False)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("freq", torch.arange(4.0), persistent=False)
        self.layers[1].requires_grad_(False)
        if tied:
            self.head.weight = self.embed.weight


def on_meta(**options):
    with torch.device("meta"):
        return Model(**options)


def mixed():
    model = on_meta()
    model.layers[0].to(torch.bfloat16)
    model.layers[1].to(torch.float16)
    return model


def untied_types():
    model = on_meta(tied=False)
    model.head.to(torch.bfloat16)
    return model


def numbers(dtype=torch.float32, seed=3, without=("head.weight",), more=(), prefix=""):
    """What a checkpoint of Model holds; floating tensors as `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in Model().state_dict().items():
        if name in without:
            continue
        if tensor.is_floating_point():
            state[name] = torch.randn(tensor.shape, generator=generator).to(dtype)
        else:
            state[name] = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype)
    state.update(more)
    return {prefix + name: tensor for name, tensor in state.items()}


def save(folder, state, form="file", metadata=None):
    """Writes `state` and returns what is passed as checkpoint: one of FORMS."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt"} if metadata is None else metadata
    if form == "index" and not state:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
        return folder
    if form == "bare index" and not state:
        (folder / "weights.json").write_text("{}")
        return folder / "weights.json"
    if form in ("file", "folder"):
        save_file(state, folder / "model.safetensors", metadata=metadata or None)
        return folder / "model.safetensors" if form == "file" else folder
    if form in ("bin", "bin file", "legacy bin file"):
        path = folder / "pytorch_model.bin"
        torch.save(state, path, _use_new_zipfile_serialization=form != "legacy bin file")
        return folder if form == "bin" else path
    return _save_parts(folder, state, form, metadata or None)


def _save_parts(folder, state, form, metadata):
    pickled, bare = "bin" in form, form.startswith("bare")
    names, files = list(state), {}
    for number in range(3):
        part = {name: state[name] for name in names[number::3]}
        file = f"model-{number + 1:05d}-of-00003.{'bin' if pickled else 'safetensors'}"
        if pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file, metadata=metadata)
        files.update(dict.fromkeys(part, file))
    written = files if bare else {"metadata": {"total_size": 1}, "weight_map": files}
    usual = "pytorch_model.bin.index.json" if pickled else "model.safetensors.index.json"
    index = folder / ("weights.json" if bare else usual)
    index.write_text(json.dumps(written))
    return folder if form.startswith("folder") else index


PICKLED = ("bin", "bin file", "legacy bin file", "bin index", "folder of a bin index", "bare bin index")
FORMS = ("file", "folder", "index", "folder of an index", "bare index", *PICKLED)


def tensors_of(model):
    """name -> what can be seen of a parameter or buffer; ties by the first name of a tensor."""
    first, found = {}, {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        same = first.setdefault(id(tensor), name)
        found[name] = (type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device),
                       tensor.requires_grad, same, None if tensor.is_meta else bytes_of(tensor))
    return found


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def files_of(folder):
    """name -> bytes; an index by its meaning."""
    found = {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).glob("*"))}
    if "index.json" in found:
        found["index.json"] = json.loads(found["index.json"])
    return found


@dataclass
class Call:
    """One call of load_checkpoint_in_model."""

    name: str
    device_map: object = None
    state: dict = field(default_factory=dict)  # options of numbers()
    build: object = on_meta
    form: str = "file"
    metadata: object = None
    offload: bool = False  # pass an offload folder
    options: dict = field(default_factory=dict)

    def outcome(self, load, folder, checkpoint, **more):
        """(error's type, tensors, files of the offload folder)."""
        torch.manual_seed(1)
        model, offload = self.build(), folder / "offload"
        options = {**self.options, **({"offload_folder": offload} if self.offload else {}), **more}
        device_map = dict(self.device_map) if isinstance(self.device_map, dict) else self.device_map
        kind = None
        try:
            assert load(model, os.fspath(checkpoint), device_map=device_map, **options) is None
        except Exception as error:
            kind = type(error)
        return kind, tensors_of(model), files_of(offload)


ALL_CPU = {"": "cpu"}
BY_PART = {"scale": "cpu", "embed": "cpu", "head": "cpu", "layers": "cpu", "layers.1": "disk", "stats": "cpu",
           "mask": "cpu", "freq": "cpu"}
DISK = {**BY_PART, "stats": "disk", "mask": "disk", "scale": "disk"}
F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64

CALLS = [
    # Without a map.
    Call("meta"),
    Call("real", build=Model),
    Call("real of another type", build=lambda: Model().to(BF16)),
    Call("dtype without a map is ignored", options={"dtype": F16}),
    Call("strict and complete", build=lambda: Model(tied=True), options={"strict": True}),
    Call("strict for files of an index", form="index", build=Model, options={"strict": True}),
    Call("strict and incomplete", state={"without": ("head.weight", "scale")}, build=Model, options={"strict": True}),
    Call("strict and more", state={"more": {"x": torch.ones(2)}}, build=Model, options={"strict": True}),
    Call("more", state={"more": {"x": torch.ones(2)}}, build=Model),
    Call("incomplete", state={"without": ("head.weight", "scale")}, build=Model),
    Call("another shape", state={"more": {"scale": torch.ones(2)}}, build=Model),
    Call("not the full state dict", build=Model, options={"full_state_dict": False}),
    Call("not the full state dict on meta", options={"full_state_dict": False}),
    Call("broadcast of no full one", build=Model, options={"full_state_dict": False, "broadcast_from_rank0": True}),
    # With a map.
    Call("all on the host", ALL_CPU),
    Call("by part", BY_PART, offload=True),
    Call("real model by part", BY_PART, build=Model, offload=True),
    Call("buffers stay out of the offload folder", DISK, offload=True),
    Call("buffers are offloaded", DISK, offload=True, options={"offload_buffers": True}),
    Call("disk without a folder", BY_PART),
    Call("offloaded as bfloat16", DISK, state={"dtype": BF16}, offload=True),
    Call("offloaded with a dtype", DISK, offload=True, options={"dtype": F16}),
    Call("a name without a device", {"layers": "cpu", "embed": "cpu", "head": "cpu"}),
    Call("a tie without a device", {"layers": "cpu", "scale": "cpu"}),
    Call("no name of the map", {"lay": "cpu"}, build=lambda: Model(tied=False)),
    Call("file's types into the model's", ALL_CPU, state={"dtype": BF16}),
    Call("file's types into a model of several", ALL_CPU, state={"dtype": F64}, build=mixed),
    Call("file's types into a part of a model of several", DISK, state={"dtype": F64}, build=mixed, offload=True),
    Call("dtype", ALL_CPU, options={"dtype": BF16}),
    Call("dtype by name", ALL_CPU, options={"dtype": "float16"}),
    Call("dtype by torch's name", ALL_CPU, options={"dtype": "torch.float64"}),
    Call("an unknown dtype", ALL_CPU, options={"dtype": "float15"}),
    Call("dtype that daemons do not cast to", ALL_CPU, options={"dtype": torch.float8_e4m3fn}),
    Call("float8 in the file", ALL_CPU, state={"dtype": torch.float8_e5m2}),
    Call("float8 as bfloat16", ALL_CPU, state={"dtype": torch.float8_e4m3fn}, options={"dtype": BF16}),
    Call("kept in fp32", ALL_CPU, state={"dtype": F64},
         options={"dtype": F16, "keep_in_fp32_modules": ["norm", "scale", "head.weight"]}),
    Call("kept in fp32 for float16 alone", ALL_CPU, options={"dtype": BF16, "keep_in_fp32_modules": ["norm"]}),
    Call("kept names that are parts of names", ALL_CPU, options={"dtype": F16, "keep_in_fp32_modules": ["nor", "up"]}),
    Call("kept and offloaded", DISK, offload=True, options={"dtype": F16, "keep_in_fp32_modules": ["norm", "scale"]}),
    Call("state dict offloaded", ALL_CPU, state={"dtype": BF16}, options={"offload_state_dict": True}),
    Call("state dict offloaded with a dtype", BY_PART, offload=True,
         options={"offload_state_dict": True, "dtype": F16, "keep_in_fp32_modules": ["norm"]}),
    Call("state dict of integers for floats offloaded", ALL_CPU, state={"more": {"scale": torch.tensor(3)}},
         options={"offload_state_dict": True, "dtype": F16}),
    Call("integers for floats", ALL_CPU, state={"more": {"scale": torch.tensor(3)}}),
    Call("integers for floats with a dtype", ALL_CPU, state={"more": {"scale": torch.tensor(3)}},
         options={"dtype": F16}),
    Call("floats for integers", ALL_CPU, state={"more": {"mask": torch.ones(3)}}),
    Call("more in the file with a map", ALL_CPU, state={"more": {"x.y": torch.ones(2)}}),
    Call("more in the file, strict with a map", ALL_CPU, state={"more": {"x": torch.ones(2)}},
         options={"strict": True}),
    Call("more in a module, strict with a map", ALL_CPU, state={"more": {"x.y": torch.ones(2)}},
         options={"strict": True}),
    Call("a buffer that no state dict has", ALL_CPU, state={"more": {"freq": torch.ones(4)}}),
    Call("a buffer that no state dict has, strict", ALL_CPU, state={"more": {"freq": torch.ones(4)}},
         options={"strict": True}),
    Call("less in the file with a map", ALL_CPU, state={"without": ("head.weight", "scale")}, build=Model,
         options={"strict": True}),
    Call("another shape with a map", ALL_CPU, state={"more": {"scale": torch.ones(2)}}),
    Call("statistics of int8 weights", ALL_CPU,
         state={"more": {"head.weight": torch.ones(11, 8, dtype=torch.int8), "head.SCB": torch.ones(11)}},
         build=lambda: on_meta(tied=False), options={"dtype": F16}),
    Call("the other name of a tie", ALL_CPU, state={"without": ("embed.weight",)}),
    Call("untied", ALL_CPU, state={"without": ()}, build=lambda: on_meta(tied=False)),
    Call("a tie on two devices", {**BY_PART, "head": "disk"}, offload=True),
    Call("broadcast means nothing with a map", ALL_CPU, options={"broadcast_from_rank0": True}),
    Call("no metadata", ALL_CPU, metadata={}),
    Call("of another framework", ALL_CPU, metadata={"format": "tf"}),
    Call("of no format", metadata={"x": "y"}),
]
CALLS += [Call(f"no tensors in a {form}, {'strict, ' if strict else ''}{'a map' if device_map else 'no map'}", device_map,
               state={"without": tuple(Model().state_dict())}, build=Model, form=form, options={"strict": strict})
          for form in ("file", "index", "bare index") for device_map in (None, ALL_CPU) for strict in (False, True)]
CALLS += [Call(f"{form}, {'a map' if device_map else 'no map'}", device_map, form=form, offload=bool(device_map))
          for form in FORMS for device_map in (None, BY_PART)]
# Things that only files of torch hold: views, tensors under several names, wrappers' prefixes.
VIEWS = {"layers.0.up.weight": torch.arange(128.0).reshape(8, 16).t(), "embed.weight": torch.arange(999.0)[5:93].view(11, 8),
         "layers.2.norm.bias": torch.tensor(1.5).expand(8)}
SHARED = (lambda weight: {"embed.weight": weight, "head.weight": weight})(torch.arange(88.0).reshape(11, 8))
for device_map in (None, ALL_CPU, DISK):
    how = {"device_map": device_map, "form": "bin file", "offload": device_map is DISK}
    with_map = f", {'no' if device_map is None else 'a'} map{' to disk' if device_map is DISK else ''}"
    CALLS += [
        Call(f"views{with_map}", state={"more": VIEWS}, **how),
        Call(f"tied in the file{with_map}", state={"more": SHARED}, **how),
        Call(f"tied in the file alone{with_map}", state={"more": SHARED}, build=lambda: on_meta(tied=False), **how),
        Call(f"tied in the file alone, of two types in the model{with_map}", state={"more": SHARED, "dtype": F64},
             build=lambda: untied_types(), **how),
        Call(f"pickled, as bfloat16{with_map}", options={"dtype": BF16}, **how),
        Call(f"pickled, a prefix of a wrapper{with_map}", state={"prefix": "module."}, build=Model, **how),
        Call(f"pickled, strict and more{with_map}", state={"more": {"x": torch.ones(2)}}, build=Model,
             **{**how, "options": {"strict": True}}),
    ]

# What accelerate's function fails for, and a call of it that means the same. A map of one device
# is handed to safetensors, which knows few.
BEYOND = [
    (Call("all on the host by a device", {"": torch.device("cpu")}), Call("", ALL_CPU)),
    *((Call(f"all on the host by {host!r}", host), Call("", ALL_CPU)) for host in ("cpu", "cpu:0", torch.device("cpu:0"))),
    *((Call(f"all on the host by a map to {host!r}", {"": host}, build=Model), Call("", ALL_CPU, build=Model))
      for host in ("cpu:0", torch.device("cpu:0"))),
    (Call("by part, spelled in several ways", {**BY_PART, "layers": "cpu:0", "embed": torch.device("cpu"), "head": "cpu:0"},
          offload=True, options={"offload_state_dict": True}),
     Call("", BY_PART, offload=True, options={"offload_state_dict": True})),
    (Call("all on disk", {"": "disk"}, offload=True), Call("", {"": "disk", "nothing": "cpu"}, offload=True)),
]
