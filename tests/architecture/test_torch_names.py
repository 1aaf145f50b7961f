"""Torch's private names are known to two files of the Python package: one for FSDP1, one for the rest."""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python/src/ckptd/torch"
ADAPTERS = ("_private.py", "_private_fsdp1.py")
# Of Hugging Face transformers, not of torch.
FOREIGN = {"_init_weights", "_is_hf_initialized", "_orig_mod", "_checkpoint_wrapped_module"}


def own_names(tree):
    """Private names that this package itself defines, or imports from itself."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return names


def private_attributes(path):
    tree = ast.parse(path.read_text())
    own = own_names(tree) | FOREIGN
    return sorted(
        f"{path.name}:{node.lineno} .{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own
    )


def test_only_the_adapters_use_private_names_of_torch():
    files = [path for path in PACKAGE.glob("*.py") if path.name not in ADAPTERS]
    assert len(files) > 5
    assert [name for path in files for name in private_attributes(path)] == []


def test_the_adapters_do_use_some():
    assert all(private_attributes(PACKAGE / name) for name in ADAPTERS)
