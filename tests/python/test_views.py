"""ckptctl --view: what rules make of tensors is what numpy makes of them.

The program is found through CKPTD_BUILD_DIR (its bin folder) or build/bin of the repository.
"""

import json
import os
import pathlib
import random
import re
import subprocess

import pytest

np = pytest.importorskip("numpy")
numpy_safetensors = pytest.importorskip("safetensors.numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, SEEDS = 25, 12


def ckptctl(*arguments, code=0):
    program = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/ckptctl"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def converted(tmp_path, state, rules, *options):
    """The state dict as ckptctl convert writes it through these rules."""
    source, target, view = (tmp_path / name for name in ("a.safetensors", "b.safetensors", "view.json"))
    numpy_safetensors.save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, source)
    view.write_text(json.dumps({"rules": rules}))
    target.unlink(missing_ok=True)
    ckptctl("convert", source, target, "--view", view, *options)
    return numpy_safetensors.load_file(target)


class Maker:
    """Random rules, and what they come to by numpy."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.made, self.rules = 0, []
        self.state = {}
        for i in range(6):
            shape = [self.rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(self.rng.randint(1, 3))]
            dtype = self.rng.choice([np.uint8, np.int16, np.float32, np.float64])
            self.state[f"t{i}.w"] = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    def name(self):
        self.made += 1
        return f"n{self.made}.w"

    def any(self):
        name = self.rng.choice(sorted(self.state))
        return name, self.state[name], self.rng.randrange(self.state[name].ndim) if self.state[name].ndim else None

    def rename(self):
        name, array, _ = self.any()
        new = self.name()
        self.rules.append({"rename": f"^{re.escape(name)}$", "to": new})
        self.state[new] = self.state.pop(name)

    def transpose(self):
        name, array, _ = self.any()
        axes = list(range(array.ndim))
        self.rng.shuffle(axes)
        self.rules.append({"transpose": re.escape(name), "axes": axes})
        self.state[name] = array.transpose(axes) if axes else array

    def slice(self):
        name, array, axis = self.any()
        if axis is None or array.shape[axis] < 2:
            return
        begin = self.rng.randrange(array.shape[axis])
        end = self.rng.randint(begin + 1, array.shape[axis])
        self.rules.append({"slice": re.escape(name), "axis": axis, "begin": begin, "end": end})
        self.state[name] = array.take(range(begin, end), axis)

    def groups_of(self, size):
        return self.rng.choice([n for n in range(1, size + 1) if size % n == 0])

    def split(self):
        name, array, axis = self.any()
        if axis is None or array.shape[axis] < 2:
            return
        groups = self.groups_of(array.shape[axis])
        each = array.shape[axis] // groups
        if each < 2:
            return
        cut = self.rng.randint(1, each - 1)
        names = [self.name(), self.name()]
        self.rules.append({"split": re.escape(name), "to": names, "axis": axis, "groups": groups,
                           "sizes": [cut * groups, (each - cut) * groups]})
        places = [np.arange(groups)[:, None] * each + np.arange(*ends) for ends in ((0, cut), (cut, each))]
        for new, place in zip(names, places):
            self.state[new] = array.take(place.reshape(-1), axis)
        del self.state[name]

    def fuse(self):
        name, array, axis = self.any()
        others = [other for other in self.state if other != name and axis is not None
                  and self.state[other].dtype == array.dtype and self.state[other].ndim == array.ndim
                  and all(i == axis or n == array.shape[i] for i, n in enumerate(self.state[other].shape))]
        if not others:
            return
        other = self.rng.choice(sorted(others))
        parts = [array, self.state[other]]
        groups = self.groups_of(np.gcd(*(part.shape[axis] for part in parts)))
        new = self.name()
        self.rules.append({"fuse": [re.escape(name), re.escape(other)], "to": new, "axis": axis, "groups": int(groups),
                           "sizes": [part.shape[axis] for part in parts]})
        pieces = [np.split(part, groups, axis) for part in parts]
        self.state[new] = np.concatenate([piece for group in zip(*pieces) for piece in group], axis)
        del self.state[name], self.state[other]

    def unstack_and_stack(self):
        name, array, axis = self.any()
        if axis is None:
            return
        new, stem = self.name(), f"s{self.made}"
        self.rules.append({"unstack": re.escape(name), "to": stem + ".{}.w", "axis": axis})
        self.rules.append({"stack": stem + r"\.(?P<index>\d+)\.w", "to": new, "axis": array.ndim - 1})
        self.state[new] = np.moveaxis(self.state.pop(name), axis, -1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rules_behind_each_other_make_what_numpy_makes(tmp_path, seed):
    maker = Maker(seed)
    for _ in range(STEPS):
        getattr(maker, maker.rng.choice(["rename", "transpose", "slice", "split", "fuse", "unstack_and_stack"]))()
    found = converted(tmp_path, Maker(seed).state, maker.rules)
    assert found.keys() == maker.state.keys()
    for name, array in maker.state.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), (name, maker.rules)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_view_and_its_inverse_leave_everything_as_it_was(tmp_path, seed):
    maker = Maker(seed)
    for _ in range(STEPS):
        getattr(maker, maker.rng.choice(["rename", "transpose", "split", "fuse", "unstack_and_stack"]))()
    before = Maker(seed).state
    back = converted(tmp_path, converted(tmp_path, before, maker.rules), maker.rules, "--inverse")
    assert back.keys() == before.keys()
    for name, array in before.items():
        assert back[name].dtype == array.dtype and np.array_equal(back[name], array), (name, maker.rules)


def test_experts_are_stacked_and_projections_are_fused_for_every_layer(tmp_path):
    state = {f"layers.{layer}.experts.{expert}.{part}": np.full((2, 3), 100 * layer + 10 * expert + number, np.float32)
             for layer in range(2) for expert in range(3) for number, part in enumerate(("w1", "w3"))}
    rules = [{"fuse": [r"(.*\.\d+)\.w1", r"(.*\.\d+)\.w3"], "to": r"\1.w13", "axis": 0},
             {"stack": r"(.*)\.experts\.(?P<index>\d+)\.w13", "to": r"\1.experts.gate_up"}]
    found = converted(tmp_path, state, rules)
    assert sorted(found) == ["layers.0.experts.gate_up", "layers.1.experts.gate_up"]
    for layer in range(2):
        expected = np.stack([np.concatenate([state[f"layers.{layer}.experts.{e}.{part}"] for part in ("w1", "w3")])
                             for e in range(3)])
        assert np.array_equal(found[f"layers.{layer}.experts.gate_up"], expected)


def test_inspect_and_plan_show_what_becomes_of_each_name(tmp_path):
    path = tmp_path / "m.safetensors"
    numpy_safetensors.save_file({"h.c_attn": np.zeros((4, 12), np.float32)}, path)
    view = json.dumps({"rules": [{"transpose": "h.c_attn"}, {"split": "h.c_attn", "to": ["q", "k", "v"]}]})
    shown = json.loads(ckptctl("inspect", path, "--tensors", "--view", view, "--output", "json").stdout)
    assert [(tensor["name"], tensor["shape"]) for tensor in shown["tensors"]] == [
        (name, ["4", "4"]) for name in "kqv"]
    planned = json.loads(ckptctl("plan", path, "--layout", "fsdp:2", "--view", view, "--output", "json").stdout)
    assert [(rank["tensor_count"], rank["tensor_bytes"]) for rank in planned["plan"]["ranks"]] == [(3, "96")] * 2


def test_a_rule_that_does_not_fit_is_said_with_its_number(tmp_path):
    path = tmp_path / "m.safetensors"
    numpy_safetensors.save_file({"w": np.zeros((4, 3), np.float32)}, path)
    done = ckptctl("inspect", path, "--view", '{"rules": [{"slice": "w", "begin": 2, "end": 9}]}', code=1)
    assert "applying rule 1 of the view (slice w) to w: its axis 0 has 4 elements, and no [2, 9)" in done.stderr
    done = ckptctl("inspect", path, "--view", "no-such-set", code=1)
    assert "there is none of this name, only gpt2-conv1d, " in done.stderr
    done = ckptctl("inspect", path, "--inverse", code=2)
    assert "--inverse requires --view" in done.stderr


def saved(folder, architecture, **config):
    """(folder, the model's state dict, what its file holds) of a tiny model as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    torch_safetensors = pytest.importorskip("safetensors.torch")
    import torch
    torch.manual_seed(45)
    config = getattr(transformers, f"{architecture}Config")(num_hidden_layers=2, vocab_size=32, bos_token_id=0,
                                                           eos_token_id=1, **config)
    for name in ("Model", "ForCausalLM", "LMHeadModel"):
        if hasattr(transformers, architecture + name) and name != "Model":
            model = getattr(transformers, architecture + name)(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data)
    model.save_pretrained(folder)
    numpy = lambda state: {name: tensor.numpy() for name, tensor in state.items()}
    return numpy(model.state_dict()), numpy(torch_safetensors.load_file(folder / "model.safetensors"))


def through(folder, view, *options, source=None):
    target = folder / f"{len(list(folder.iterdir()))}.safetensors"
    ckptctl("convert", source or folder / "model.safetensors", target, "--view", view, *options)
    return target, numpy_safetensors.load_file(target)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def llama_for_megatron(held, layers, heads, groups):
    """Megatron-core's names; q, k and v of each group of heads follow each other, gate lies before up."""
    made = {"embedding.word_embeddings.weight": held["model.embed_tokens.weight"],
            "decoder.final_layernorm.weight": held["model.norm.weight"]}
    if "lm_head.weight" in held:
        made["output_layer.weight"] = held["lm_head.weight"]
    for layer in range(layers):
        at, to = f"model.layers.{layer}", f"decoder.layers.{layer}"
        made[f"{to}.self_attention.linear_qkv.layer_norm_weight"] = held[f"{at}.input_layernorm.weight"]
        made[f"{to}.mlp.linear_fc1.layer_norm_weight"] = held[f"{at}.post_attention_layernorm.weight"]
        made[f"{to}.self_attention.linear_proj.weight"] = held[f"{at}.self_attn.o_proj.weight"]
        made[f"{to}.mlp.linear_fc2.weight"] = held[f"{at}.mlp.down_proj.weight"]
        made[f"{to}.mlp.linear_fc1.weight"] = np.concatenate([held[f"{at}.mlp.{p}_proj.weight"] for p in ("gate", "up")])
        for kind in ("weight", "bias"):
            parts = [held.get(f"{at}.self_attn.{p}_proj.{kind}") for p in "qkv"]
            if parts[0] is not None:
                of_groups = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
                made[f"{to}.self_attention.linear_qkv.{kind}"] = np.concatenate(of_groups, 1).reshape(-1, *parts[0].shape[1:])
    return made


@pytest.mark.parametrize("architecture, tied", [("Llama", False), ("Qwen2", True)])
def test_llama_and_qwen2_are_seen_as_megatron_has_them_and_back(tmp_path, architecture, tied):
    _, held = saved(tmp_path, architecture, hidden_size=16, intermediate_size=24, num_attention_heads=4,
                    num_key_value_heads=2, tie_word_embeddings=tied)
    path, found = through(tmp_path, "hf-llama-to-megatron")
    assert_equal(found, llama_for_megatron(held, 2, 4, 2))
    assert_equal(through(tmp_path, "hf-llama-to-megatron", "--inverse", source=path)[1], held)
    done = ckptctl("inspect", path, "--view", "hf-llama-to-megatron:num_attention_heads=4", code=1)
    assert "it matches no tensor" in done.stderr


def test_gpt2_has_the_axes_of_linear_layers_and_back(tmp_path):
    _, held = saved(tmp_path, "GPT2", n_embd=16, n_head=2, n_positions=8)
    turned = re.compile(r".*\.(c_attn|c_proj|c_fc)\.weight")
    path, found = through(tmp_path, "gpt2-conv1d")
    assert_equal(found, {name: array.T if turned.fullmatch(name) else array for name, array in held.items()})
    assert sum(map(bool, map(turned.fullmatch, held))) == 8
    assert_equal(through(tmp_path, "gpt2-conv1d", "--inverse", source=path)[1], held)


def test_mixtral_is_seen_as_transformers_stacks_it_and_back(tmp_path):
    state, held = saved(tmp_path, "Mixtral", hidden_size=16, intermediate_size=24, num_attention_heads=4,
                        num_key_value_heads=2, num_local_experts=3)
    if "model.layers.0.mlp.experts.gate_up_proj" not in state:
        pytest.skip("this transformers keeps each expert by itself")
    path, found = through(tmp_path, "mixtral-stacked")
    assert_equal(found, state)
    assert_equal(through(tmp_path, "mixtral-stacked", "--inverse", source=path)[1], held)
